/*
encode_file.c: the tokens of a file, for dev/test/system/compare_tokenizers.py.

    encode_file VOCABULARY FILE [special] [ROUNDS]

Prints the tokens as int32 in the machine's order to standard output, and seconds (the best of ROUNDS, on one thread) to
standard error.
*/
#include "../../../dataloader/tokenizer.h"

int main(int argc, char** argv) {
    process.name = "encode_file";
    if (argc < 3) die_usage("encode_file VOCABULARY FILE [special] [ROUNDS]");
    Error error;
    Tokenizer t;
    MappedFile file;
    int rounds = 1;
    bool special = false;
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "special") == 0)
            special = true;
        else
            rounds = atoi(argv[i]);
    }
    if (!tokenizer_open(&t, argv[1], &error) || !file_map(&file, argv[2], &error)) die("%s", error.text);
    TokenList list = {NULL, 0, 0};
    double best = INFINITY;
    for (int i = 0; i < rounds; i++) {
        Encoder encoder;
        encoder_open(&encoder);
        list.count = 0;
        const double start = seconds_now();
        tokenizer_encode(&t, &encoder, &list, file.data, file.size, special);
        best = fmin(best, seconds_now() - start);
        encoder_close(&encoder);
    }
    fprintf(stderr, "%.6f\n", best);
    if (fwrite(list.token, sizeof *list.token, list.count, stdout) != list.count) die("cannot write the tokens");
    token_list_free(&list);
    file_unmap(&file);
    tokenizer_free(&t);
    return 0;
}
