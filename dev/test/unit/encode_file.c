/*
encode_file.c: the tokens of a file, for dev/test/system/compare_tokenizers.py and test_data.sh.

    encode_file VOCABULARY FILE [special]

Prints the tokens as int32 in the machine's order.
*/
#include "../../../dataloader/tokenizer.h"

int main(int argc, char** argv) {
    process.name = "encode_file";
    if (argc < 3) die_usage("encode_file VOCABULARY FILE [special]");
    Error error;
    Tokenizer t;
    MappedFile file;
    if (!tokenizer_open(&t, argv[1], &error) || !file_map(&file, argv[2], &error)) die("%s", error.text);
    TokenList list = {NULL, 0, 0};
    Encoder encoder;
    encoder_open(&encoder);
    tokenizer_encode(&t, &encoder, &list, file.data, file.size, argc > 3 && strcmp(argv[3], "special") == 0);
    encoder_close(&encoder);
    if (fwrite(list.token, sizeof *list.token, list.count, stdout) != list.count) die("cannot write the tokens");
    token_list_free(&list);
    file_unmap(&file);
    tokenizer_free(&t);
    return 0;
}
