/*
test_json.c: util/json.h against hand-written trees, against an independent reading of RFC 8259 and of UTF-8, and
against its own writer. Texts are given to it in blocks of exactly their size, so that the sanitizers see one byte too
many.

    ./test_json            ./test_json --short    with smaller sizes, for the sanitizers
*/
#include "../../../util/json.h"
#include "test.h"

// Parses a copy of exactly n bytes, not ended with NUL.
static bool parse_bytes(Json* json, const char* text, size_t n, Error* error) {
    char* copy = (char*)checked_malloc(n, "a test's text");
    memcpy(copy, text, n);
    const bool ok = json_parse(json, "t.json", copy, n, error);
    free(copy);
    return ok;
}

// The tree in a notation of its own: i12 r1.5 true null "bytes"/count [a b] {"name"/count:value}.
static void print_node(FILE* f, const JsonNode* node) {
    if (node->name) fprintf(f, "\"%s\"/%u:", node->name, node->name_bytes);
    switch (node->type) {
    case JSON_NULL: fputs("null", f); break;
    case JSON_BOOL: fputs(node->value.boolean ? "true" : "false", f); break;
    case JSON_INTEGER: fprintf(f, "i%lld", (long long)node->value.integer); break;
    case JSON_REAL: fprintf(f, "r%.17g", node->value.real); break;
    case JSON_STRING: fprintf(f, "\"%s\"/%u", node->value.string, node->count); break;
    default:
        fputc(node->type == JSON_ARRAY ? '[' : '{', f);
        for (const JsonNode* n = json_first(node); n; n = json_next(n)) {
            print_node(f, n);
            if (json_next(n)) fputc(' ', f);
        }
        fputc(node->type == JSON_ARRAY ? ']' : '}', f);
    }
}

// A tree, or without one a string as json_write_string writes it; to be freed.
static char* printed(const JsonNode* tree, const char* string) {
    char* text = NULL;
    size_t size = 0;
    FILE* f = open_memstream(&text, &size);
    if (!f) die("out of memory");
    if (string)
        json_write_string(f, string);
    else
        print_node(f, tree);
    if (fclose(f) != 0) die("out of memory");
    return text;
}

// ---- Trees ------------------------------------------------------------------------------------------------------

typedef struct {
    const char *text, *expected;
} Case;

static void test_trees(void) {
    static const Case cases[] = {
        {"{}", "{}"},
        {"[]", "[]"},
        {" \t\r\n[ ] \n", "[]"},
        {"null", "null"},
        {"true", "true"},
        {"false", "false"},
        {"\"\"", "\"\"/0"},
        {"{\"shape\": [2, 3], \"dtype\": \"F32\"}", "{\"shape\"/5:[i2 i3] \"dtype\"/5:\"F32\"/3}"},
        {"[[[]],{\"a\":{}},[{}],7]", "[[[]] {\"a\"/1:{}} [{}] i7]"},
        {"[[1,[2,[3]],4],5]", "[[i1 [i2 [i3]] i4] i5]"},
        {"{\"\":1}", "{\"\"/0:i1}"},
        {"{\"a\":1,\"A\":2,\"ab\":3,\"a\\u0000\":4}", "{\"a\"/1:i1 \"A\"/1:i2 \"ab\"/2:i3 \"a\"/2:i4}"},
        {"{\"a\":1,\"a\":2}", "{\"a\"/1:i1 \"a\"/1:i2}"},
        {"[0,-0,7,-7,10]", "[i0 i0 i7 i-7 i10]"},
        {"[9223372036854775807,-9223372036854775808]", "[i9223372036854775807 i-9223372036854775808]"},
        {"[9223372036854775808,-9223372036854775809]", "[r9.2233720368547758e+18 r-9.2233720368547758e+18]"},
        {"[18446744073709551616,100000000000000000000]", "[r1.8446744073709552e+19 r1e+20]"},
        {"[1.0,1e3,1E+2,1e-2,-0.0,-1.5]", "[r1 r1000 r100 r0.01 r-0 r-1.5]"},
        {"[1e308,1e-400,4.9e-324,0e999]", "[r1e+308 r0 r4.9406564584124654e-324 r0]"},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\"\\/\b\f\n\r\t\"/8"},
        {"\"\\u0041\\u00e9\\u20AC\\ud83d\\uDE00\"", "\"A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"/10"},
        {"\"A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x7F\"", "\"A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x7F\"/11"},
        {"\"x\\u0000y\"", "\"x\"/3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Json json;
        Error error = {""};
        const bool ok = parse_bytes(&json, cases[i].text, strlen(cases[i].text), &error);
        char* tree = ok ? printed(json.nodes, NULL) : NULL;
        check(ok && strcmp(tree, cases[i].expected) == 0, "tree of %.60s%s%s", json_quoted(cases[i].text).text,
              *error.text ? ": " : "", error.text);
        free(tree);
        if (ok) json_free(&json);
    }
}

// ---- Errors -----------------------------------------------------------------------------------------------------

// Where the error is, line and column in characters, and behind a blank the text; separated by |.
static const char errors[] =
    "1:1 |2:2  \n |1:2 {|1:2 [|1:3 [1|1:4 [1,|1:4 [1,]|1:2 [,1]|1:4 [1,,2]|1:4 [1 2]|1:3 [1}|1:1 ]|1:3 []]|1:4 {} {}|"
    "1:3 1 2|1:5 {\"a\"|1:6 {\"a\":|1:6 {\"a\" 1}|1:8 {\"a\":1,}|1:2 {,}|1:2 {a:1}|1:2 {1:1}|1:2 {'a':1}|"
    "1:8 {\"a\":1 \"b\":2}|1:7 {\"a\":1]|3:8 {\n  \"a\": 1,\n  \"b\": x\n}|"
    "1:9 [\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\", x]|1:4 nul|1:4 nulL|1:5 nullx|1:1 True|1:1 NaN|1:1 Infinity|"
    "1:2 -Infinity|1:1 // comment\n1|1:4 [1]\x01|1:1 \xA0|1:2 [\x0b]|1:2 [\x0c]|1:1 \xEF\xBB\xBF{}|1:2 -|1:1 +1|"
    "1:2 01|1:3 -01|1:3 [00]|1:3 1.|1:4 [1.]|1:1 .5|1:3 1.e5|1:3 1e|1:4 1e+|1:4 1e+-1|1:4 1e5.5|1:2 0x10|1:3 [1_000]|"
    "1:2 [1e400]|1:2 [-1e400]|1:2 \"|1:5 \"abc|1:3 \"a\nb\"|1:2 \"\t\"|1:2 \"\x1F\"|1:3 \"\\|1:3 \"\\x41\"|"
    "1:3 \"\\'\"|1:3 \"\\U0041\"|1:7 \"\\u004\"|1:6 \"\\u00|1:6 \"\\u00g0\"|1:6 \"\\u00@0\"|1:6 \"\\u00 0\"|"
    "1:4 \"\\u+041\"|1:8 \"\\ud800\"|1:8 \"\\ud800|1:8 \"\\udc00\"|1:8 \"\\udfff\"|1:8 \"\\udbff\"|"
    "1:8 \"\\udc00\\ud800\"|1:8 \"\\ud800x\"|1:8 \"\\ud800abcdefgh\"|1:8 \"\\ud800\\n12345\"|1:14 \"\\ud800\\u0041\"|"
    "1:14 \"\\ud800\\ud800\"|1:14 \"\\ud800\\ue000\"|1:2 \"\x80\"|1:2 \"\xC0\x80\"|1:2 \"\xC3\"|1:2 \"\xE0\x80\x80\"|"
    "1:2 \"\xED\xA0\x80\"|1:2 \"\xF4\x90\x80\x80\"|1:2 \"\xFF\"|1:2 \"\xE2\x82|1:3 {\"\xFF\":1}";

static void test_errors(void) {
    for (const char* at = errors; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL) {
        char text[64], place[32];
        const char* blank = strchr(at, ' ');
        Json json;
        Error error = {""};
        snprintf(place, sizeof place, "t.json:%.*s: ", (int)(blank - at), at);
        snprintf(text, sizeof text, "%.*s", (int)strcspn(blank + 1, "|"), blank + 1);
        const bool refused = !parse_bytes(&json, text, strlen(text), &error);
        check(refused && strncmp(error.text, place, strlen(place)) == 0 && !json.nodes && !json.strings,
              "refused %s: %s", json_quoted(text).text, error.text);
        if (!refused) json_free(&json);
    }

    // A NUL byte is not the end of a text, and nothing is after it unseen.
    Json json;
    Error error;
    check(!parse_bytes(&json, "[]\0", 3, &error) && !parse_bytes(&json, "\"a\0b\"", 5, &error) &&
              !parse_bytes(&json, "\"\\\0\"", 4, &error),
          "refused: NUL behind a value, in a string, and after a backslash");

    // A hostile name does not get into the terminal, nor does it push the message out of the line.
    char name[1200] = "\\u001b[31m\xC3\xA9", text[3000];
    for (size_t i = strlen(name); i < sizeof name - 1; i++) name[i] = (char)('a' + i % 26);
    name[sizeof name - 1] = 0;
    snprintf(text, sizeof text, "{\"%s\":1}", name);
    check(parse_bytes(&json, text, strlen(text), &error), "a long and hostile name is read: %s", error.text);
    json_fail(&json, json.nodes, &error, "%s", json_quoted(json.nodes[1].name).text);
    check(!strchr(error.text, 27) && strstr(error.text, "...\""), "and shown: %s", error.text);
    json_free(&json);
    fail(&error, "%s", "a\x1b[2J\xC2\x85\xC2\xA1\x7f\xC3\xA9\xC2");
    check(strcmp(error.text, "a?[2J??\xC2\xA1?\xC3\xA9\xC2") == 0, "what a terminal would obey is shown as ?: %s",
          error.text);
    int broken = 0; // characters of two, three and four bytes are not cut in two
    for (size_t i = 0; i < 12; i++) {
        static const char* characters[] = {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
        char cut[1024] = "";
        while (strlen(cut) < i / 3) strcat(cut, "x");
        while (strlen(cut) < 600) strcat(cut, characters[i % 3]);
        const JsonQuoted q = json_quoted(cut);
        const size_t kept = strlen(q.text) - 5; // but for quotes and dots
        broken += strncmp(q.text + 1, cut, kept) != 0 || (kept - i / 3) % (i % 3 + 2) != 0 || kept < 195;
        broken += strcmp(q.text + 1 + kept, "...\"") != 0;
    }
    check(broken == 0, "%d of 12 long names are cut within a character", broken);
    char path[2000];
    memset(path, 'p', sizeof path);
    path[sizeof path - 1] = 0;
    check(!json_parse(&json, path, "x", 1, &error) && strstr(error.text, "'x'"),
          "a path of %zu bytes leaves room for the message", sizeof path - 1);
    check(!json_open(&json, "/nowhere/t.json", &error), "no file: %s", error.text);
}

static void test_depth(void) {
    for (int extra = 0; extra < 2; extra++)
        for (int object = 0; object < 2; object++) {
            char text[4096] = "";
            const int depth = JSON_MAX_DEPTH + extra;
            for (int i = 0; i < depth; i++) strcat(text, object ? "{\"a\":" : "[");
            strcat(text, "1");
            for (int i = 0; i < depth; i++) strcat(text, object ? "}" : "]");
            Json json;
            Error error = {""};
            const bool ok = parse_bytes(&json, text, strlen(text), &error);
            check(ok == !extra, "%d %s inside one another: %s", depth, object ? "objects" : "arrays",
                  ok ? "read" : error.text);
            if (ok) json_free(&json);
        }
    const size_t n = 1000000; // far too deep: no recursion that deep either
    char* text = (char*)checked_malloc(n, "brackets");
    memset(text, '[', n);
    Json json;
    Error error;
    check(!parse_bytes(&json, text, n, &error), "a million brackets: %s", error.text);
    free(text);
}

// Whatever is cut off, the rest is refused, and read no further than it goes.
static void test_truncation(void) {
    const char* text =
        "{\"a\": [1, -2.5e+3, true, false, null], \"b\\ud83d\\ude00\xE2\x82\xAC\": {\"c\": \"d\\n\"}, \"e\": []}";
    int wrong = 0;
    Json json;
    Error error;
    for (size_t n = 0; n < strlen(text); n++)
        if (parse_bytes(&json, text, n, &error)) {
            wrong++;
            json_free(&json);
        }
    const bool whole = parse_bytes(&json, text, strlen(text), &error);
    check(whole && wrong == 0, "%d of %zu beginnings of a text are accepted", wrong, strlen(text));
    if (whole) json_free(&json);
}

// ---- UTF-8 ------------------------------------------------------------------------------------------------------

// The bytes of a code point as RFC 3629, section 3, draws them.
static int encode(unsigned char* out, uint32_t c) {
    static const unsigned first[] = {0, 0, 192, 224, 240}; // by bytes
    const int bytes = 1 + (c > 0x7F) + (c > 0x7FF) + (c > 0xFFFF);
    for (int i = bytes - 1; i > 0; i--, c /= 64) out[i] = (unsigned char)(128 + c % 64);
    out[0] = (unsigned char)(first[bytes] + c);
    return bytes;
}

// The whole of Unicode, as escapes and as it is, one string each; then out through the writer, and in again.
static void test_unicode(void) {
    const size_t most = 0x110000 * 12 + 3;
    char *escaped = (char*)checked_malloc(most, "text"), *plain = (char*)checked_malloc(most, "text");
    char* expected = (char*)checked_malloc(most, "text");
    size_t e = 0, p = 0, n = 0;
    escaped[e++] = plain[p++] = '"';
    for (uint32_t c = 1; c < 0x110000; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        if (c < 0x10000)
            e += (size_t)snprintf(escaped + e, most - e, c % 2 ? "\\u%04x" : "\\u%04X", c);
        else
            e += (size_t)snprintf(escaped + e, most - e, "\\u%04x\\u%04X", 0xD7C0 + (c >> 10), 0xDC00 + (c & 1023));
        unsigned char bytes[4];
        const size_t k = (size_t)encode(bytes, c);
        memcpy(expected + n, bytes, k);
        n += k;
        if (c < 32 || c == '"' || c == '\\')
            p += (size_t)snprintf(plain + p, most - p, "\\u%04x", c);
        else
            memcpy(plain + p, bytes, k), p += k;
    }
    escaped[e++] = plain[p++] = '"';
    expected[n] = 0;
    const char* texts[2] = {escaped, plain};
    const size_t sizes[2] = {e, p};
    Json json;
    Error error = {""};
    for (int i = 0; i < 2; i++) {
        const bool ok = parse_bytes(&json, texts[i], sizes[i], &error) && json.nodes->count == n &&
                        memcmp(json.nodes->value.string, expected, n + 1) == 0;
        check(ok, "all of Unicode %s%s", i ? "as it is" : "in escapes", error.text);
        json_free(&json);
    }
    char* text = printed(NULL, expected);
    check(parse_bytes(&json, text, strlen(text), &error) && strcmp(json.nodes->value.string, expected) == 0,
          "all of Unicode, written and read");
    json_free(&json);
    free(text);
    free(escaped);
    free(plain);
    free(expected);
}

// json_utf8_bytes against the definition: a sequence is well-formed if it is what encode() makes of some code point.
static void test_utf8_bytes(bool brief) {
    int64_t wrong = 0, sequences = 0;
    const unsigned last[] = {0x22, 0x7F, 0x80, 0xBF, 0xC0};
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++)
            for (unsigned c = 0; c < 256; c += brief ? 5 : 1)
                for (size_t d = 0; d < sizeof last / sizeof *last; d++, sequences++) {
                    const unsigned char s[4] = {(unsigned char)a, (unsigned char)b, (unsigned char)c,
                                                (unsigned char)last[d]};
                    const uint32_t code[5] = {0, a, (a & 31) << 6 | (b & 63), (a & 15) << 12 | (b & 63) << 6 | (c & 63),
                                              (a & 7) << 18 | (b & 63) << 12 | (c & 63) << 6 | (s[3] & 63)};
                    size_t expected = 0;
                    for (int k = 1; k <= 4; k++) {
                        unsigned char bytes[4];
                        const bool surrogate = code[k] >= 0xD800 && code[k] <= 0xDFFF;
                        if (code[k] < 0x110000 && !surrogate && encode(bytes, code[k]) == k &&
                            memcmp(s, bytes, (size_t)k) == 0)
                            expected = (size_t)k;
                    }
                    wrong += json_utf8_bytes(s, 4) != expected;
                    for (size_t n = 1; n < 4; n++) wrong += json_utf8_bytes(s, n) != (expected <= n ? expected : 0);
                }
    check(wrong == 0, "%lld of %lld sequences of bytes are judged wrongly", (long long)wrong, (long long)sequences);
}

static void test_write(void) {
    static const Case cases[] = {
        {"", "\"\""},
        {"a\"b\\c/", "\"a\\\"b\\\\c/\""},
        {"\n\t\r\b\x01\x1F\x7F", "\"\\n\\t\\u000d\\u0008\\u0001\\u001f\\u007f\""},
        {"\xC3\xA9 \xFF\xC3", "\"\xC3\xA9 \\ufffd\\ufffd\""},
        {"\xED\xA0\x80", "\"\\ufffd\\ufffd\\ufffd\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char* text = printed(NULL, cases[i].text);
        check(strcmp(text, cases[i].expected) == 0, "writes %s", cases[i].expected);
        free(text);
    }
}

// ---- Numbers ----------------------------------------------------------------------------------------------------

static void test_numbers(bool brief) {
    const int n = brief ? 40000 : 600000;
    int wrong = 0;
    Json json;
    Error error = {""};
    for (int i = 0; i < n; i++) { // integers of all sizes, and doubles of any bits: among them many subnormal ones
        const Random4 r = philox(7, 1, (uint64_t)i);
        const int64_t bits = (int64_t)((uint64_t)r.word[0] << 32 | r.word[1]), integer = bits >> r.word[2] % 64;
        double real;
        char text[64];
        memcpy(&real, &bits, sizeof real);
        if (i % 16 == 0) real = (double)bits / 1024;
        if (!isfinite(real)) continue;
        snprintf(text, sizeof text, i % 4 ? "%.17g" : "%.17E", real);
        if (i % 2) snprintf(text, sizeof text, "%lld", (long long)integer);
        if (!parse_bytes(&json, text, strlen(text), &error)) die("%s: %s", text, error.text);
        const JsonNode* x = json.nodes;
        wrong += i % 2 ? x->type != JSON_INTEGER || x->value.integer != integer : json_number(x) != real;
        json_free(&json);
    }
    check(wrong == 0, "%d of %d random doubles and integers are read wrongly", wrong, n);

    char* text = (char*)checked_malloc(1000100, "digits"); // a number of a million digits
    memset(text, '3', 1000000);
    text[1] = '.';
    check(parse_bytes(&json, text, 1000000, &error) && json.nodes->value.real == 10 / 3.0, "a million digits%s",
          error.text);
    json_free(&json);
    text[1] = '3';
    check(!parse_bytes(&json, text, 1000000, &error), "a million digits before the point: %s", error.text);
    free(text);
}

// ---- Looking up -------------------------------------------------------------------------------------------------

static void test_lookup(void) {
    const char* text =
        "{\n  \"layers\": 12,\n  \"eps\": 1e-5,\n  \"tied\": true,\n  \"name\": \"gpt2\",\n  \"nul\": \"a\\u0000b\",\n"
        "  \"size\": [1, 2],\n  \"nested\": {\"layers\": 3}\n}";
    Json json;
    Error error;
    if (!parse_bytes(&json, text, strlen(text), &error)) die("%s", error.text);
    const JsonNode *root = json.nodes, *nested = json_get(root, "nested");
    int64_t integer = -1;
    double number = -1;
    bool boolean = false;
    const char* string = "";
    check(json_get_integer(&integer, &json, root, "layers", 1, 12, &error) && integer == 12 &&
              json_get_integer(&integer, &json, nested, "layers", 3, 3, &error) && integer == 3,
          "an integer, and one inside");
    check(json_get_number(&number, &json, root, "eps", &error) && number == 1e-5 &&
              json_get_number(&number, &json, root, "layers", &error) && number == 12,
          "a number, and an integer is one");
    check(json_get_bool(&boolean, &json, root, "tied", &error) && boolean &&
              json_get_string(&string, &json, root, "name", &error) && strcmp(string, "gpt2") == 0,
          "a boolean, a string");
    check(!json_get(root, "layer") && !json_get(root, "layersx") && !json_get(root, "") && !json_get(root, "LAYERS"),
          "names are compared whole");
    check(!json_get(json_get(root, "size"), "0") && !json_first(json_get(root, "eps")),
          "an array has no names, a number no elements");
    const JsonNode* size = json_get(root, "size");
    check(size->count == 2 && json_first(size)->value.integer == 1 && json_next(json_first(size))->value.integer == 2 &&
              !json_next(json_next(json_first(size))),
          "an array is walked");
    check(size->line == 7 && size->column == 11, "a value knows its place: %u:%u", size->line, size->column);

    integer = 77;
    check(!json_get_integer(&integer, &json, root, "layers", 13, 99, &error) && integer == 77 &&
              strncmp(error.text, "t.json:2:13: \"layers\"", 21) == 0,
          "%s", error.text);
    check(!json_get_integer(&integer, &json, root, "layers", 1, 11, &error) &&
              !json_get_integer(&integer, &json, root, "heads", 1, 11, &error) &&
              !json_get_integer(&integer, &json, root, "eps", 0, 1, &error) && integer == 77,
          "integers that are too large, not there, or none");
    check(!json_get_number(&number, &json, root, "name", &error) &&
              !json_get_bool(&boolean, &json, root, "size", &error),
          "neither a number nor a boolean");
    check(!json_get_string(&string, &json, root, "nested", &error) &&
              !json_get_string(&string, &json, size, "x", &error) &&
              !json_get_string(&string, &json, root, "nul", &error) && strcmp(string, "gpt2") == 0,
          "no string, or one with a NUL");
    json_free(&json);
}

int main(int argc, char** argv) {
    const bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    test_trees();
    test_errors();
    test_depth();
    test_truncation();
    test_unicode();
    test_utf8_bytes(brief);
    test_write();
    test_numbers(brief);
    test_lookup();
    return test_end();
}
