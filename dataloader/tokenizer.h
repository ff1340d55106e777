/*
dataloader/tokenizer.h: text to tokens, and back to text that a terminal can show.

    tokenizer/unicode.h        which characters are letters, numbers, white space (generated)
    tokenizer/pretokenize.h    splits a text into words
    tokenizer/bpe.h            encodes words as tokens, by the merges of a vocabulary, and decodes tokens

Without a vocabulary the tokens are the 256 bytes. Decoded tokens need not be text: an untrained model generates control
characters and incomplete characters. TextWriter joins bytes to UTF-8 characters and writes '?' for bytes that form
none.

tokenizer_open reads a vocabulary from a file or a folder. Two formats are read:

    tokenizer.json                 Hugging Face: vocabulary, merges, added tokens and how a text is split, in one file.
    vocab.json and merges.txt      GPT-2's, side by side; the first is named. A file of any other name is taken for a
                                   tokenizer.json.

In a folder the first of these is opened.

In JSON a token's bytes are characters, one for each byte: printable ones of Latin-1 are themselves, the other 68 are
U+0100 and the following, in their order. A blank is "\u0120".

Files are untrusted input. A feature that would give other tokens here than in the file's own program (a normalizer, a
prefix of words, a split that pretokenize.h does not have, tokens that strip blanks) is refused by name. Features that
only add to a text or cut it (post_processor, truncation, padding) are ignored, as documents are assembled elsewhere.
*/
#pragma once

#include "../util/base.h"
#include "tokenizer/bpe.h"

// ---- Bytes as characters ----------------------------------------------------------------------------------------

static inline bool byte_is_printable(int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); }

static inline uint32_t byte_to_letter(int b) {
    if (byte_is_printable(b)) return (uint32_t)b;
    const int high = b <= 160 ? b - 127 + 33 : 67;
    return 256u + (uint32_t)(b <= 32 ? b : high);
}

// The byte of this character, or -1.
static inline int letter_to_byte(uint32_t c) {
    if (c < 256) return byte_is_printable((int)c) ? (int)c : -1;
    if (c > 256 + 67) return -1;
    if (c <= 256 + 32) return (int)c - 256;
    return c < 256 + 67 ? (int)c - 256 - 33 + 127 : 173;
}

// Writes the bytes of a name (n bytes of UTF-8) to out, which has room for n; returns their number. -1: a character is
// not a byte.
static inline int64_t name_to_bytes(unsigned char* out, const char* name, size_t n) {
    const unsigned char* text = (const unsigned char*)name;
    int64_t count = 0;
    for (size_t at = 0, bytes; at < n; at += bytes) {
        bytes = json_utf8_bytes(text + at, n - at);
        const int b = bytes ? letter_to_byte(utf8_code(text + at, bytes)) : -1;
        if (b < 0) return -1;
        out[count++] = (unsigned char)b;
    }
    return count;
}

// ---- Reading ----------------------------------------------------------------------------------------------------

// A vocabulary being read.
typedef struct {
    TokenText* text; // (room), by number
    int vocab, room;
    unsigned char*
        bytes;         // (2 size) the tokens', `used` of them, and as many for a merge; text[].bytes points into them
    size_t used, size; // size: of the file
} TokenTexts;

static inline void token_texts_open(TokenTexts* texts, size_t size) {
    memset(texts, 0, sizeof *texts);
    texts->size = size;
    texts->bytes = (unsigned char*)checked_malloc(2 * size, "a vocabulary");
}

static inline void token_texts_free(TokenTexts* texts) {
    free(texts->text);
    free(texts->bytes);
}

// Token number i, 0 <= i < VOCAB_MOST, added if it is new.
static inline TokenText* token_text(TokenTexts* texts, int64_t i) {
    while (i >= texts->room) {
        const int before = texts->room;
        texts->text = (TokenText*)checked_grow(texts->text, &texts->room, 65536, sizeof *texts->text, "a vocabulary");
        memset(texts->text + before, 0, (size_t)(texts->room - before) * sizeof *texts->text);
    }
    if (i >= texts->vocab) texts->vocab = (int)i + 1;
    return &texts->text[i];
}

// ---- JSON: names of tokens with their numbers -------------------------------------------------------------------

// Adds a name's token to the vocabulary: as bytes or, if it is an added token, verbatim.
static inline bool read_name(TokenTexts* texts, const Json* json, const JsonNode* member, Error* error) {
    if (member->type != JSON_INTEGER || member->value.integer < 0 || member->value.integer >= VOCAB_MOST)
        return json_fail(json, member, error, "the number of the token %s has to be a whole one below %d",
                         json_quoted(member->name).text, VOCAB_MOST);
    if (member->name_bytes == 0) return json_fail(json, member, error, "a token without a name");
    TokenText* text = token_text(texts, member->value.integer);
    const bool added = text->n > 0 && text->apart;
    if (text->n > 0 && !added)
        return json_fail(json, member, error, "the tokens %s and another one have the same number",
                         json_quoted(member->name).text);
    const int64_t n = name_to_bytes(texts->bytes + texts->used, member->name, member->name_bytes);
    if (added && (text->n != member->name_bytes || memcmp(text->bytes, member->name, text->n) != 0))
        return json_fail(json, member, error, "%s has the number of an added token of another name",
                         json_quoted(member->name).text);
    if (added) {
        text->apart = n < 0 || (size_t)n != text->n || memcmp(texts->bytes + texts->used, text->bytes, text->n) != 0;
        return true;
    }
    if (n < 0)
        return json_fail(
            json, member, error,
            "%s has a character that stands for no byte: not a byte-level vocabulary, others are not supported",
            json_quoted(member->name).text);
    text->bytes = texts->bytes + texts->used;
    text->n = (size_t)n;
    texts->used += (size_t)n;
    return true;
}

static inline bool read_names(TokenTexts* texts, const Json* json, const JsonNode* names, Error* error) {
    for (const JsonNode* member = json_first(names); member; member = json_next(member))
        if (!read_name(texts, json, member, error)) return false;
    return true;
}

// Adds the merge of two names. False: one of them, or their result, is not a token.
static inline bool read_merge(Tokenizer* tokenizer, const TokenTexts* texts, const char* left, size_t left_bytes,
                              const char* right, size_t right_bytes, uint32_t rank) {
    unsigned char* merge = texts->bytes + texts->used;
    if (left_bytes + right_bytes > texts->size) return false;
    const int64_t a = name_to_bytes(merge, left, left_bytes);
    if (a <= 0) return false;
    const int64_t b = name_to_bytes(merge + a, right, right_bytes);
    if (b <= 0) return false;
    const int64_t x = tokenizer_find(tokenizer, merge, (size_t)a), y = tokenizer_find(tokenizer, merge + a, (size_t)b);
    const int64_t both = tokenizer_find(tokenizer, merge, (size_t)(a + b));
    if (x < 0 || y < 0 || both < 0) return false;
    tokenizer_merge(tokenizer, (uint32_t)x, (uint32_t)y, rank, (uint32_t)both);
    return true;
}

// Adds a merge written as "left right"; names have no blanks.
static inline bool read_merge_line(Tokenizer* tokenizer, const TokenTexts* texts, const char* s, size_t n,
                                   uint32_t rank) {
    const char* blank = (const char*)memchr(s, ' ', n);
    if (!blank) return false;
    const size_t left = (size_t)(blank - s);
    return read_merge(tokenizer, texts, s, left, blank + 1, n - left - 1, rank);
}

// ---- tokenizer.json ---------------------------------------------------------------------------------------------

static inline bool is_nothing(const JsonNode* node) {
    return !node || node->type == JSON_NULL || (node->type == JSON_BOOL && !node->value.boolean) ||
           (node->type == JSON_STRING && node->count == 0) || (node->type == JSON_REAL && node->value.real == 0) ||
           (node->type == JSON_INTEGER && node->value.integer == 0);
}

// Refuses members of these names, unless their value is null, false, 0 or "".
static inline bool require_nothing(const Json* json, const JsonNode* object, const char* const* names, int count,
                                   const char* of, Error* error) {
    for (int i = 0; i < count; i++) {
        const JsonNode* node = json_get(object, names[i]);
        if (!is_nothing(node)) return json_fail(json, node, error, "%s with \"%s\" is not supported", of, names[i]);
    }
    return true;
}

static inline bool is_string(const JsonNode* node, const char* text) {
    return node && node->type == JSON_STRING && node->count == strlen(text) &&
           memcmp(node->value.string, text, node->count) == 0;
}

// The regular expressions as files have them.
static const struct {
    SplitKind split;
    const char* text;
} split_texts[] = {
    {SPLIT_GPT2, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {SPLIT_LLAMA3,
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {SPLIT_QWEN2, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                  "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

// Reads a "Split" by a regular expression whose matches are the words.
static inline bool read_split_pattern(SplitKind* split, const Json* json, const JsonNode* node, Error* error) {
    const JsonNode* pattern = json_get(node, "pattern");
    const JsonNode* regex = pattern ? json_get(pattern, "Regex") : NULL;
    const JsonNode *behavior = json_get(node, "behavior"), *invert = json_get(node, "invert");
    const bool inverted = invert && invert->type == JSON_BOOL && invert->value.boolean;
    const bool matches = (is_string(behavior, "Isolated") && !inverted) || (is_string(behavior, "Removed") && inverted);
    for (size_t i = 0; i < sizeof split_texts / sizeof split_texts[0]; i++)
        if (matches && is_string(regex, split_texts[i].text)) {
            *split = split_texts[i].split;
            return true;
        }
    return json_fail(json, node, error,
                     "this way to split a text is not supported; GPT-2's, Llama 3's and Qwen 2's are");
}

// Reads a "ByteLevel", which splits like GPT-2 unless use_regex is false.
static inline bool read_byte_level(bool* splits, const Json* json, const JsonNode* node, Error* error) {
    static const char* const refused[] = {"add_prefix_space"};
    const JsonNode* uses = json_get(node, "use_regex");
    *splits = !uses || !is_nothing(uses);
    return require_nothing(json, node, refused, 1, "a pre-tokenizer", error);
}

// Reads the pre-tokenizer: a ByteLevel, or a sequence of one Split and a ByteLevel that does not split.
static inline bool read_split(SplitKind* split, const Json* json, const JsonNode* root, Error* error) {
    const JsonNode* node = json_get(root, "pre_tokenizer");
    if (!node) return json_fail(json, root, error, "\"pre_tokenizer\" is missing");
    const JsonNode *steps = json_get(node, "pretokenizers"), *first = node, *second = NULL;
    if (is_string(json_get(node, "type"), "Sequence") && steps && steps->type == JSON_ARRAY && steps->count > 0 &&
        steps->count <= 2) {
        first = json_first(steps);
        second = json_next(first);
    }
    bool splits = false;
    if (is_string(json_get(first, "type"), "ByteLevel") && !second) {
        *split = SPLIT_GPT2;
        if (!read_byte_level(&splits, json, first, error)) return false;
        return splits || json_fail(json, first, error, "a text that is not split is not supported");
    }
    if (is_string(json_get(first, "type"), "Split") && second && is_string(json_get(second, "type"), "ByteLevel")) {
        if (!read_byte_level(&splits, json, second, error) || !read_split_pattern(split, json, first, error))
            return false;
        return !splits || json_fail(json, second, error, "a text that is split twice is not supported");
    }
    return json_fail(json, node, error,
                     "this pre-tokenizer is not supported: a ByteLevel is, or a Split and a ByteLevel");
}

static inline bool read_flag(bool* flag, const Json* json, const JsonNode* node, const char* name, Error* error) {
    *flag = false;
    return !json_get(node, name) || json_get_bool(flag, json, node, name, error);
}

// Adds an added token to the vocabulary, before the names.
static inline bool read_added(TokenTexts* texts, const Json* json, const JsonNode* node, Error* error) {
    static const char* const refused[] = {"single_word", "lstrip", "rstrip"};
    int64_t token = 0;
    const JsonNode* content = json_require(json, node, "content", JSON_STRING, error);
    if (!content || !json_get_integer(&token, json, node, "id", 0, VOCAB_MOST - 1, error) ||
        !require_nothing(json, node, refused, 3, "an added token", error))
        return false;
    if (content->count == 0) return json_fail(json, content, error, "an added token without a text");
    TokenText* text = token_text(texts, token);
    if (text->n) return json_fail(json, node, error, "two added tokens have the number %lld", (long long)token);
    text->bytes = (const unsigned char*)content->value.string;
    text->n = content->count;
    text->apart = text->added = true;
    return read_flag(&text->special, json, node, "special", error);
}

static inline bool read_merges(Tokenizer* tokenizer, const TokenTexts* texts, const Json* json, const JsonNode* merges,
                               Error* error) {
    uint32_t rank = 0;
    tokenizer_reserve(tokenizer, merges->count);
    for (const JsonNode* member = json_first(merges); member; member = json_next(member), rank++) {
        const JsonNode *left = member->type == JSON_ARRAY && member->count == 2 ? json_first(member) : NULL,
                       *right = left ? json_next(left) : NULL;
        const bool pair = left && left->type == JSON_STRING && right->type == JSON_STRING;
        const bool line = member->type == JSON_STRING;
        if (pair &&
            read_merge(tokenizer, texts, left->value.string, left->count, right->value.string, right->count, rank))
            continue;
        if (line && read_merge_line(tokenizer, texts, member->value.string, member->count, rank)) continue;
        return json_fail(json, member, error, "a merge is two tokens that make a third; this one is not");
    }
    return true;
}

static inline bool read_normalizer(const Json* json, const JsonNode* root, Error* error) {
    const JsonNode* node = json_get(root, "normalizer");
    const JsonNode* steps = node ? json_get(node, "normalizers") : NULL;
    if (!node || node->type == JSON_NULL || (steps && steps->type == JSON_ARRAY && steps->count == 0)) return true;
    const JsonNode* type = json_get(node, "type");
    return json_fail(json, node, error,
                     "the normalizer %s is not supported: it changes the text before it becomes tokens",
                     json_quoted(type && type->type == JSON_STRING ? type->value.string : "?").text);
}

static inline bool read_tokenizer_json(Tokenizer* tokenizer, TokenTexts* texts, const Json* json, Error* error) {
    static const char* const refused[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                          "byte_fallback"};
    const JsonNode *root = json->nodes, *model = json_require(json, root, "model", JSON_OBJECT, error);
    if (!model) return false;
    const JsonNode* type = json_get(model, "type");
    if (type && !is_string(type, "BPE"))
        return json_fail(json, type, error, "a model of the kind %s is not supported, BPE is",
                         json_quoted(type->type == JSON_STRING ? type->value.string : "?").text);
    SplitKind split = SPLIT_GPT2;
    const JsonNode *names = json_require(json, model, "vocab", JSON_OBJECT, error),
                   *added = json_get(root, "added_tokens");
    const JsonNode* merges = names ? json_require(json, model, "merges", JSON_ARRAY, error) : NULL;
    if (!merges || !require_nothing(json, model, refused, 4, "a vocabulary", error) ||
        !read_normalizer(json, root, error) || !read_split(&split, json, root, error))
        return false;
    if (added && added->type != JSON_ARRAY) return json_fail(json, added, error, "\"added_tokens\" has to be an array");
    for (const JsonNode* item = added ? json_first(added) : NULL; item; item = json_next(item))
        if (!read_added(texts, json, item, error)) return false;
    if (!read_names(texts, json, names, error) ||
        !tokenizer_begin(tokenizer, texts->text, texts->vocab, split, json->path, error) ||
        !read_merges(tokenizer, texts, json, merges, error))
        return false;
    for (int i = 0; i < texts->vocab; i++)
        if (texts->text[i].added) tokenizer_add(tokenizer, (uint32_t)i, texts->text[i].special);
    return read_flag(&tokenizer->whole_words, json, model, "ignore_merges", error);
}

// ---- vocab.json and merges.txt ----------------------------------------------------------------------------------

// The next line of a text, from *at on, without its end ("\n" or "\r\n"); returns its length and moves *at after the
// line.
static inline size_t next_line(const unsigned char** line, const unsigned char* s, size_t size, size_t* at) {
    *line = s + *at;
    const unsigned char* end = (const unsigned char*)memchr(s + *at, '\n', size - *at);
    size_t n = end ? (size_t)(end - *line) : size - *at;
    *at += n + (end != NULL);
    return n > 0 && (*line)[n - 1] == '\r' ? n - 1 : n;
}

static inline bool read_merge_lines(Tokenizer* tokenizer, const TokenTexts* texts, const MappedFile* file,
                                    const char* path, Error* error) {
    uint32_t rank = 0;
    int number = 0;
    int64_t lines = 1;
    for (size_t i = 0; i < file->size; i++) lines += file->data[i] == '\n';
    tokenizer_reserve(tokenizer, lines);
    for (size_t at = 0; at < file->size;) {
        const unsigned char* line;
        const size_t n = next_line(&line, file->data, file->size, &at);
        if (number++ == 0 && n >= 8 && memcmp(line, "#version", 8) == 0) continue;
        if (n == 0 && at == file->size) break;
        if (!read_merge_line(tokenizer, texts, (const char*)line, n, rank++))
            return fail(error, "%s:%d: two tokens that make a third expected, with one blank between them", path,
                        number);
    }
    return true;
}

// A path without its folder.
static inline const char* name_of_path(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Writes FOLDER/name for a name beside this path.
static inline void beside(char* out, size_t size, const char* path, const char* name) {
    snprintf(out, size, "%.*s%s", (int)(name_of_path(path) - path), path, name);
}

static inline bool read_vocab_and_merges(Tokenizer* tokenizer, TokenTexts* texts, const Json* json, Error* error) {
    static const char end[] = "<|endoftext|>";
    char merges[4096];
    MappedFile file;
    beside(merges, sizeof merges, json->path, "merges.txt");
    if (!file_map(&file, merges, error)) return false;
    const bool ok = read_names(texts, json, json->nodes, error) &&
                    tokenizer_begin(tokenizer, texts->text, texts->vocab, SPLIT_GPT2, json->path, error) &&
                    read_merge_lines(tokenizer, texts, &file, merges, error);
    file_unmap(&file);
    const int64_t last = ok ? tokenizer_find(tokenizer, (const unsigned char*)end, strlen(end)) : -1;
    if (last >= 0) tokenizer_add(tokenizer, (uint32_t)last, true);
    return ok;
}

// ---- Opening ----------------------------------------------------------------------------------------------------

// Whether a vocabulary is in two files: this vocab.json, and merges.txt.
static inline bool tokenizer_is_pair(const char* path) { return strcmp(name_of_path(path), "vocab.json") == 0; }

// Finds the file with the vocabulary of a folder. False: there is none.
static inline bool tokenizer_in_folder(char* path, size_t size, const char* folder) {
    static const char* const names[] = {"tokenizer.json", "vocab.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (snprintf(path, size, "%s/%s", folder, names[i]) < (int)size && access(path, F_OK) == 0) return true;
    return false;
}

// Opens a vocabulary: a file, or a folder with one. False: *error has the reason, and there is nothing to free.
static inline bool tokenizer_open(Tokenizer* tokenizer, const char* path, Error* error) {
    static const char readable[] = "a tokenizer.json, or a vocab.json with merges.txt beside it";
    memset(tokenizer, 0, sizeof *tokenizer);
    char inside[4096];
    struct stat st;
    MappedFile file;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        if (!tokenizer_in_folder(inside, sizeof inside, path))
            return fail(error, "%s: a folder without a vocabulary: %s", path, readable);
        path = inside;
    }
    if (!file_map(&file, path, error)) return false;
    Json json;
    TokenTexts texts;
    const bool is_object = file.size > 0 && file.data[0] == '{';
    bool ok = is_object ? json_parse(&json, path, file.data, file.size, error)
                        : fail(error, "%s: not a vocabulary that can be read: %s", path, readable);
    token_texts_open(&texts, file.size);
    file_unmap(&file);
    if (ok) {
        ok = tokenizer_is_pair(path) ? read_vocab_and_merges(tokenizer, &texts, &json, error)
                                     : read_tokenizer_json(tokenizer, &texts, &json, error);
        json_free(&json);
    }
    token_texts_free(&texts);
    if (!ok) {
        tokenizer_free(tokenizer);
        return false;
    }
    tokenizer->document = tokenizer_document(tokenizer);
    if (tokenizer_is_bytes(tokenizer)) tokenizer->split = SPLIT_BYTES; // as any split gives the same tokens
    return true;
}

// ---- Writing ----------------------------------------------------------------------------------------------------

// Writes the vocabulary of the 256 bytes as a tokenizer.json, which Hugging Face's library loads, too.
static inline void write_byte_tokenizer(FILE* out) {
    fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [],\n"
          "  \"normalizer\": null,\n  \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
          "\"trim_offsets\": true, \"use_regex\": true},\n  \"post_processor\": null,\n  \"decoder\": {\"type\": "
          "\"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n  \"model\": {\n"
          "    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
          "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false,\n    \"vocab\": {",
          out);
    for (int b = 0; b < 256; b++) {
        char letter[4];
        const int n = (int)(json_utf8_write(letter, byte_to_letter(b)) - letter);
        const char* escape = b == '"' || b == '\\' ? "\\" : "";
        fprintf(out, "%s\n      \"%s%.*s\": %d", b ? "," : "", escape, n, letter, b);
    }
    fputs("},\n    \"merges\": []\n  }\n}\n", out);
}

typedef struct {
    FILE* out;
    char bytes[4]; // an incomplete character's
    int count, length;
} TextWriter;

// Length of the UTF-8 character that begins with this byte; 0: it begins none.
static inline int utf8_length(int byte) {
    if (byte < 0x80) return 1;
    if (byte < 0xC2 || byte >= 0xF5) return 0;
    return 2 + (byte >= 0xE0) + (byte >= 0xF0);
}

// Writes '?' for an incomplete character.
static inline void text_writer_end(TextWriter* writer) {
    if (writer->count) fputc('?', writer->out);
    writer->count = 0;
    fflush(writer->out);
}

// Writes one byte: at once if it is a character, else once the character is complete; '?' if it is above 255.
static inline void text_writer_put(TextWriter* writer, int byte) {
    const bool continues = (byte & 0xC0) == 0x80;
    if (writer->count && !continues) text_writer_end(writer);
    if (writer->count == 0) writer->length = utf8_length(byte);
    const bool control = byte < 32 ? byte != '\n' && byte != '\t' : byte == 127 || byte > 255;
    if (writer->length == 0 || control) {
        fputc('?', writer->out);
        return;
    }
    writer->bytes[writer->count++] = (char)byte;
    if (writer->count < writer->length) return;
    const bool obeyed =
        (unsigned char)writer->bytes[0] == 0xC2 && (unsigned char)writer->bytes[1] < 0xA0; // U+0080 to U+009F
    // overlong, a surrogate, beyond Unicode; or a control character of two bytes
    if (obeyed || !json_utf8_bytes((const unsigned char*)writer->bytes, (size_t)writer->count)) {
        text_writer_end(writer);
        return;
    }
    fwrite(writer->bytes, 1, (size_t)writer->count, writer->out);
    writer->count = 0;
    fflush(writer->out);
}

// Writes the bytes of one token.
static inline void text_writer_put_token(TextWriter* writer, const Tokenizer* tokenizer, int64_t token) {
    size_t n;
    const unsigned char* bytes = tokenizer_decode(tokenizer, token, &n);
    for (size_t i = 0; i < n; i++) text_writer_put(writer, bytes[i]);
    if (n == 0) text_writer_put(writer, 256); // no token of this vocabulary: '?'
}
