/*
test_text.c: dataloader/text.h: texts and JSON lines become the tokens of each document, in one stream; what is wrong is
said with its line.
*/
#include "../../../dataloader/text.h"
#include "token_fixture.h"

// JSON lines become bytes, a document each, in one file or several; what is wrong is said with its line.
static void test_jsonl(void) {
    Tokenizer bytes;
    Error error = {""};
    tokenizer_bytes(&bytes);
    write_text("l_0.jsonl", "{\"text\":\"one\\n\"}\n\n{\"id\":3,\"text\":\"\"}\n{\"text\":\"tw\\u00e9\"}");
    write_text("l_1.jsonl", "");
    write_text("l_2.jsonl", "  {\"more\":[{\"text\":1}], \"text\":\"three\"}\n");
    TokenFiles files = open_or_die("l_*.jsonl");
    const int64_t before = files.tokens;
    check(files.format == TOKENS_JSONL && before > 0 && text_encode(&files, &bytes, &error), "%s", error.text);
    static const char expected[] = "one\ntw\303\251\nthree\n";
    enum { N = sizeof expected - 1 };
    int32_t tokens[N];
    int wrong = files.tokens != N || !tokens_read(tokens, &files, 0, N, 256, &error);
    for (int i = 0; i < N && wrong == 0; i++) wrong += tokens[i] != (unsigned char)expected[i];
    check(wrong == 0, "JSON lines: %lld tokens", (long long)files.tokens);
    tokens_close(&files);
    check(!is_mapped("/l_"), "    closed: none of them is mapped any more");

    // The error has the line's number, and perhaps the column.
    static const char* const refused[][2] = {{"{\"text\":\"a\"}\n{\"txt\":\"b\"}\n", "bad.jsonl:2:1:"},
                                             {"{\"text\":\"a\"}\n\n{\"text\":\"b\n", "bad.jsonl:3:"},
                                             {"{\"text\":3}", "bad.jsonl:1:"},
                                             {"[\"text\"]\n", "bad.jsonl:1:"},
                                             {"plain text\n", "bad.jsonl:1:"},
                                             {"{\"text\":\"\"}\n", "bad.jsonl"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        files = open_or_die(write_text("bad.jsonl", refused[i][0]));
        check(!text_encode(&files, &bytes, &error) && strstr(error.text, refused[i][1]), "refused: %s", error.text);
        tokens_close(&files);
    }
    files = open_or_die("l_0.jsonl");
    files.tokens = text_most + 1;
    check(!text_encode(&files, &bytes, &error), "refused: %s", error.text);
    tokens_close(&files);
    tokenizer_free(&bytes);
}

// A text becomes the tokens of each file, behind the token that begins a document; as bytes it stays as it is.
static void test_text(const Tokenizer* gpt2) {
    Tokenizer bytes, none = {};
    Error error = {""};
    Encoder encoder;
    TokenList expected = {};
    int32_t tokens[64];
    tokenizer_bytes(&bytes);
    static const char* const text[] = {"the quick dog\n", "", "{\"text\":\"<|endoftext|>\"} caf\303\251"};
    encoder_open(&encoder);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "t_%d.txt", i);
        write_text(name, text[i]);
        if (!text[i][0]) continue;
        token_list_reserve(&expected, 1);
        expected.token[expected.count++] = (uint32_t)gpt2->document;
        tokenizer_encode(gpt2, &encoder, &expected, (const unsigned char*)text[i], strlen(text[i]), false);
    }
    TokenFiles files = open_or_die("t_*.txt");
    const TokenFiles before = files;
    check(text_encode(&files, &bytes, &error) && memcmp(&files, &before, sizeof files) == 0 && !files.file[0].memory &&
              !files.file[2].memory,
          "a text whose tokens are bytes stays as it is");
    check(!text_encode(&files, &none, &error) && strstr(error.text, "--tokenizer"), "refused: %s", error.text);
    const int64_t n = (int64_t)expected.count;
    int wrong = !text_encode(&files, gpt2, &error) || files.tokens != n || n < 12 || n > 64 || files.files != 3 ||
                !tokens_read(tokens, &files, 0, n, gpt2->vocab, &error);
    for (int i = 0; i < n && wrong == 0; i++) wrong += tokens[i] != (int32_t)expected.token[i];
    check(wrong == 0, "a text of three files is tokenized: %lld tokens of %lld: %s", (long long)files.tokens,
          (long long)n, error.text);
    char described[256];
    tokens_describe(described, sizeof described, &files);
    check(strstr(described, "(3 files): tokenized text, "), "    described: %s", described);
    tokens_close(&files);
    check(!is_mapped("/t_"), "    closed: none of them is mapped any more");
    files = open_or_die("t_0.txt");
    files.tokens = text_most + 1;
    check(!text_encode(&files, gpt2, &error) && strstr(error.text, "build/tokenize"), "refused: %s", error.text);
    tokens_close(&files);
    encoder_close(&encoder);
    token_list_free(&expected);
    tokenizer_free(&bytes);
}

int main(void) {
    alarm(120); // a hang is a failure
    Tokenizer gpt2;
    Error error;
    if (!tokenizer_open(&gpt2, "dev/test/reference/tokenizer_gpt2.json", &error)) die("%s", error.text);
    folder_begin("test_text");
    test_jsonl();
    test_text(&gpt2);
    tokenizer_free(&gpt2);
    return folder_end();
}
