/*
make_choices.c: questions of multiple choice as HellaSwag has them, in tokens: a file for train_gpt --evaluate
(dataloader/eval_loader.h).

    scripts/download_data.sh hellaswag
    build/make_choices --tokenizer gpt2/ --data data/hellaswag/hellaswag_val.jsonl --out data/hellaswag/val.bin
    ./train_gpt --model gpt2-124M --init gpt2/ --evaluate data/hellaswag/val.bin

A line of the JSONL is an object with "ctx", the context; "endings", of which one is right; and "label", which one, from
0. The tokens are those of llm.c's own files: of the context, and of a blank and the ending, each by itself. The format
has 16 bits for a token, so a vocabulary has at most 65,535 of them. --tokenizer bytes: a token is a byte.
*/
#include "../../dataloader/eval_loader.h"
#include "../../dataloader/text.h"
#include "../../util/options.h"

typedef struct {
    const char *tokenizer, *data, *out;
    int split; // choice; -1: the vocabulary's own
    bool help;
} ChoicesOptions;

enum { MOST_EXAMPLES = 65535, MOST_BYTES = 65535 };

typedef struct {
    const Tokenizer* tokenizer;
    Encoder encoder;
    TokenList text;    // of one part
    uint16_t* example; // (MOST_BYTES / 2): the one that is being put together
    size_t used;       // of it
    FILE* out;
    int32_t examples, longest; // longest: in bytes
    int64_t completions, tokens;
} ChoiceWriter;

static bool append_number(ChoiceWriter* writer, int64_t number, Error* error) {
    if (number >= CHOICE_BEGIN) return fail(error, "%lld does not fit the format's 16 bits", (long long)number);
    if (writer->used == MOST_BYTES / 2)
        return fail(error, "more than %d bytes of tokens, which the format has no room for", MOST_BYTES);
    writer->example[writer->used++] = (uint16_t)number;
    return true;
}

// Appends the length and the tokens of a text.
static bool append_text_tokens(ChoiceWriter* writer, const char* text, size_t n, Error* error) {
    writer->text.count = 0;
    tokenizer_encode(writer->tokenizer, &writer->encoder, &writer->text, (const unsigned char*)text, n, false);
    bool ok = append_number(writer, (int64_t)writer->text.count, error);
    for (size_t i = 0; i < writer->text.count && ok; i++) ok = append_number(writer, writer->text.token[i], error);
    writer->tokens += (int64_t)writer->text.count;
    return ok;
}

// Appends a blank and the ending.
static bool append_ending(ChoiceWriter* writer, const JsonNode* ending, Error* error) {
    char* text = (char*)checked_malloc((size_t)ending->count + 1, "an ending");
    text[0] = ' ';
    memcpy(text + 1, ending->value.string, ending->count);
    const bool ok = append_text_tokens(writer, text, (size_t)ending->count + 1, error);
    free(text);
    writer->completions++;
    return ok;
}

// Reads the label: a number, or a number as text, as in Hugging Face's copy.
static bool read_label(int64_t* label, const Json* json, int64_t endings, Error* error) {
    const JsonNode* node = json_get(json->nodes, "label");
    char* end = NULL;
    if (node && node->type == JSON_STRING && node->count > 0) {
        *label = strtol(node->value.string, &end, 10);
        if (*end == 0 && *label >= 0 && *label < endings) return true;
        return json_fail(json, node, error, "\"label\" is \"%s\"; it has to be a number below %lld", node->value.string,
                         (long long)endings);
    }
    return json_get_integer(label, json, json->nodes, "label", 0, endings - 1, error);
}

// Assembles and writes the example of a line.
static bool write_example(void* context_of_lines, const Json* json, size_t at, Error* error) {
    ChoiceWriter* writer = (ChoiceWriter*)context_of_lines;
    (void)at;
    if (writer->examples == MOST_EXAMPLES) return fail(error, "the format has room for %d examples", MOST_EXAMPLES);
    const JsonNode* context = json_require(json, json->nodes, "ctx", JSON_STRING, error);
    const JsonNode* endings = context ? json_require(json, json->nodes, "endings", JSON_ARRAY, error) : NULL;
    int64_t label = 0;
    if (!endings || !read_label(&label, json, endings->count, error)) return false;
    if (context->count == 0) return json_fail(json, context, error, "\"ctx\" is empty");
    writer->used = 0;
    writer->example[writer->used++] = CHOICE_BEGIN;
    bool ok = append_number(writer, 0, error) && append_number(writer, writer->examples, error) &&
              append_number(writer, label, error) && append_number(writer, endings->count, error) &&
              append_text_tokens(writer, context->value.string, context->count, error);
    for (const JsonNode* ending = json_first(endings); ending && ok; ending = json_next(ending)) {
        if (ending->type != JSON_STRING) return json_fail(json, ending, error, "an ending has to be a string");
        ok = append_ending(writer, ending, error);
    }
    const int32_t bytes = (int32_t)(2 * writer->used);
    writer->example[1] = (uint16_t)bytes;
    writer->longest = bytes > writer->longest ? bytes : writer->longest;
    writer->examples++;
    return ok && (fwrite(writer->example, 2, writer->used, writer->out) == writer->used ||
                  fail(error, "cannot write: %s", strerror(errno)));
}

// Writes the examples of all lines of the file.
static bool write_examples(ChoiceWriter* writer, const char* path, const MappedFile* file, Error* error) {
    return jsonl_lines(file->data, 0, file->size, path, write_example, writer, error) &&
           (writer->examples > 0 || fail(error, "%s: no example in it", path));
}

static bool write_header(ChoiceWriter* writer) {
    const int32_t header[256] = {CHOICE_MAGIC, CHOICE_VERSION, writer->examples, writer->longest};
    return fseek(writer->out, 0, SEEK_SET) == 0 && fwrite(header, sizeof header, 1, writer->out) == 1;
}

// Writes the file under another name, then renames it.
static bool write_file(ChoiceWriter* writer, const ChoicesOptions* options, const MappedFile* file, Error* error) {
    char path[4096];
    snprintf(path, sizeof path, "%s.part", options->out);
    writer->out = fopen(path, "wb");
    if (!writer->out) return fail(error, "%s: cannot write: %s", path, strerror(errno));
    bool written = write_header(writer);
    bool ok = !written || write_examples(writer, options->data, file, error);
    if (ok) {
        written = written && write_header(writer);
        written = fclose(writer->out) == 0 && written && rename(path, options->out) == 0;
        ok = written || fail(error, "%s: cannot write: %s", path, strerror(errno));
    } else {
        fclose(writer->out);
    }
    if (!ok) unlink(path);
    return ok;
}

static bool open_vocabulary(Tokenizer* tokenizer, const ChoicesOptions* options, Error* error) {
    const int split = options->split < 0 ? -1 : SPLIT_GPT2 + options->split;
    if (strcmp(options->tokenizer, "bytes") != 0) return tokenizer_open(tokenizer, options->tokenizer, split, error);
    tokenizer_bytes(tokenizer);
    return true;
}

static bool run(const ChoicesOptions* options, Error* error) {
    Tokenizer tokenizer;
    MappedFile file;
    ChoiceWriter writer = {};
    if (!file_map(&file, options->data, error)) return false;
    if (!open_vocabulary(&tokenizer, options, error)) {
        file_unmap(&file);
        return false;
    }
    writer.tokenizer = &tokenizer;
    writer.example = (uint16_t*)checked_malloc(MOST_BYTES, "an example");
    encoder_open(&writer.encoder);
    const bool ok = write_file(&writer, options, &file, error);
    if (ok)
        printf("%s: %d examples with %lld completions, %lld tokens, vocabulary of %d\n", options->out, writer.examples,
               (long long)writer.completions, (long long)writer.tokens, tokenizer.vocab);
    encoder_close(&writer.encoder);
    token_list_free(&writer.text);
    free(writer.example);
    tokenizer_free(&tokenizer);
    file_unmap(&file);
    return ok;
}

int main(int argc, char** argv) {
    process.name = "make_choices";
    ChoicesOptions options = {};
    Error error;
    options.split = -1;
    Option table[] = {
        option_string("data", &options.data, "FILE", "the JSONL file"),
        option_string(
            "tokenizer", &options.tokenizer, "PATH",
            "vocabulary: tokenizer.json, vocab.json beside merges.txt, a tiktoken file, or a folder with one; "
            "bytes: none"),
        option_choice("split", &options.split, "gpt2|llama3|qwen2|cl100k",
                      "how a text is cut into words, where the vocabulary does not say it"),
        option_string("out", &options.out, "FILE", "to write"),
        option_flag("help", &options.help, "this list"),
    };
    const int n = (int)(sizeof table / sizeof table[0]);
    options_of_program(table, n, argc, argv, &options.help,
                       "make_choices makes a file of multiple choice from questions as HellaSwag has them.");
    if (!options.data || !options.tokenizer || !options.out)
        die_usage("--data, --tokenizer and --out are needed; --help lists all options");
    if (!run(&options, &error)) die("%s", error.text);
    return 0;
}
