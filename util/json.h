/*
util/json.h: a strict JSON reader (RFC 8259), and the escaping of strings for writers.

A text becomes a tree in one array, in the order of the text: a parent is right before its first child, and every node
has the distance to its next sibling.

    {"shape": [2, 3], "dtype": "F32"}

    node    0           1           2       3       4
            object      "shape":    2       3       "dtype":
            2 members   2 elements                  "F32"
    next                +3          +1      -       -

Strings are decoded to UTF-8 and end with a NUL, in one block. A string never becomes longer than its source (\u0041 is
6 bytes and becomes at most 3), so the block is as large as the text. The text may be freed.

Strict means that these are errors: anything after the value, a trailing comma, comments, NaN, numbers like 01, .5 or
1e999, control characters in strings, bytes that are not UTF-8, a surrogate without its other half, and nesting deeper
than 128. Every error begins with FILE:LINE:COLUMN; a column is a character. Of two members of the same name in one
object the first counts.
*/
#pragma once

#include "base.h"

enum { JSON_MAX_DEPTH = 128 };

typedef enum { JSON_NULL, JSON_BOOL, JSON_INTEGER, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

// A number without fraction and exponent that fits int64 is a JSON_INTEGER and exact, every other one a JSON_REAL.
typedef struct {
    JsonType type;
    uint32_t line, column; // where it begins, from 1
    uint32_t next;         // distance to the next sibling, in nodes; 0: it is the last
    uint32_t count;        // elements of an array, members of an object, bytes of a string
    uint32_t name_bytes;
    const char* name; // an object's member has one, else NULL
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char* string; // ends with NUL, and may contain one (see count)
    } value;
} JsonNode;

typedef struct {
    JsonNode* nodes; // nodes[0] is the value that the text holds
    uint32_t count;
    char* strings;
    const char* path; // as errors name it; in the block of strings
} Json;

static inline void json_free(Json* json) {
    free(json->nodes);
    free(json->strings);
    memset(json, 0, sizeof *json);
}

// ---- Errors -----------------------------------------------------------------------------------------------------

// A string in quotes for an error's one line, at most 200 bytes of it. fail() replaces control characters.
typedef struct {
    char text[208];
} JsonQuoted;

static inline JsonQuoted json_quoted(const char* s) {
    JsonQuoted q;
    size_t n = strlen(s);
    const bool cut = n > 200;
    if (cut) n = 200;
    while (cut && (s[n] & 0xC0) == 0x80 && n > 0) n--; // not in the middle of a character
    snprintf(q.text, sizeof q.text, "\"%.*s%s\"", (int)n, s, cut ? "..." : "");
    return q;
}

__attribute__((format(printf, 5, 0))) static inline bool
json_fail_at(Error* error, const char* path, uint32_t line, uint32_t column, const char* format, va_list args) {
    char message[sizeof error->text];
    vsnprintf(message, sizeof message, format, args);
    return fail(error, "%.512s:%u:%u: %.480s", path, line, column, message);
}

// An error about this node: fills *error with FILE:LINE:COLUMN and the message; always returns false.
__attribute__((format(printf, 4, 5))) static inline bool json_fail(const Json* json, const JsonNode* node, Error* error,
                                                                   const char* format, ...) {
    va_list args;
    va_start(args, format);
    json_fail_at(error, json->path, node->line, node->column, format, args);
    va_end(args);
    return false;
}

static inline const char* json_type_name(JsonType type) {
    static const char* names[] = {"null", "a boolean", "an integer", "a number", "a string", "an array", "an object"};
    return names[type];
}

// ---- UTF-8 ------------------------------------------------------------------------------------------------------

// Bytes of the character at s, of which there are n > 0 bytes; 0 where it is not well-formed (Unicode, table 3-7).
static inline size_t json_utf8_bytes(const unsigned char* s, size_t n) {
    if (s[0] < 0x80) return 1;
    const size_t bytes = 2 + (s[0] >= 0xE0) + (s[0] >= 0xF0);
    if (s[0] < 0xC2 || s[0] > 0xF4 || n < bytes) return 0;
    unsigned low = 0x80, high = 0xBF; // the second byte's
    if (s[0] == 0xE0) low = 0xA0;     // else overlong, and so for 0xF0
    if (s[0] == 0xED) high = 0x9F;    // else a surrogate
    if (s[0] == 0xF0) low = 0x90;
    if (s[0] == 0xF4) high = 0x8F; // else above U+10FFFF
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < bytes; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    return bytes;
}

// Writes a code point, surrogates excepted, and returns the end.
static inline char* json_utf8_write(char* out, uint32_t c) {
    if (c < 0x80) {
        *out++ = (char)c;
        return out;
    }
    const int more = 1 + (c >= 0x800) + (c >= 0x10000); // bytes after the first
    *out++ = (char)((0xFF00 >> (more + 1) & 0xFF) | c >> 6 * more);
    for (int i = more - 1; i >= 0; i--) *out++ = (char)(0x80 | (c >> 6 * i & 0x3F));
    return out;
}

// ---- Reading ----------------------------------------------------------------------------------------------------

typedef struct {
    const unsigned char* text;
    size_t size, at;
    size_t line_start; // plus the continuation bytes so far of this line, so that columns count
    uint32_t line;     // characters
    char* free;        // in the block of strings
    int capacity;      // there is room for these nodes
    Json* json;
    Error* error;
} JsonParser;

// An error at the current place.
__attribute__((format(printf, 2, 3))) static inline bool json_syntax(JsonParser* p, const char* format, ...) {
    va_list args;
    va_start(args, format);
    json_fail_at(p->error, p->json->path, p->line, (uint32_t)(p->at - p->line_start + 1), format, args);
    va_end(args);
    return false;
}

static inline int json_peek(const JsonParser* p) { return p->at < p->size ? p->text[p->at] : -1; }

static inline bool json_unexpected(JsonParser* p, const char* expected) {
    const int c = json_peek(p);
    if (c < 0) return json_syntax(p, "%s expected, but the text ends", expected);
    if (c > 32 && c < 127) return json_syntax(p, "%s expected, not '%c'", expected, c);
    return json_syntax(p, "%s expected, not the byte 0x%02x", expected, c);
}

static inline void json_skip_space(JsonParser* p) {
    for (int c; (c = json_peek(p)) == ' ' || c == '\t' || c == '\r' || c == '\n';) {
        p->at++;
        if (c == '\n') p->line++, p->line_start = p->at;
    }
}

// Four hexadecimal digits.
static inline bool json_hex4(JsonParser* p, uint32_t* value) {
    *value = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        const int c = json_peek(p), lower = c | 32;
        if (c >= '0' && c <= '9')
            *value = *value << 4 | (uint32_t)(c - '0');
        else if (c > 0 && lower >= 'a' && lower <= 'f')
            *value = *value << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return json_unexpected(p, "a hexadecimal digit");
    }
    return true;
}

// Parses an escape, from the backslash on.
static inline bool json_parse_escape(JsonParser* p) {
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    p->at++;
    const int c = json_peek(p);
    const char* known = c > 0 ? strchr(escapes, c) : NULL;
    if (known) {
        *p->free++ = meant[known - escapes];
        p->at++;
        return true;
    }
    if (c != 'u') return json_unexpected(p, "one of \"\\/bfnrtu after a backslash");
    p->at++;
    uint32_t code, low;
    if (!json_hex4(p, &code)) return false;
    if (code >= 0xD800 && code < 0xE000) { // a surrogate: half of a character above U+FFFF
        if (code >= 0xDC00 || p->size - p->at < 6 || p->text[p->at] != '\\' || p->text[p->at + 1] != 'u')
            return json_syntax(p, "\\u%04x is half of a pair of surrogates, and the other half is not there", code);
        p->at += 2;
        if (!json_hex4(p, &low)) return false;
        if (low < 0xDC00 || low >= 0xE000)
            return json_syntax(p, "\\u%04x cannot be followed by \\u%04x in a pair of surrogates", code, low);
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    p->free = json_utf8_write(p->free, code);
    return true;
}

// Parses a string, from the opening quote to after the closing one.
static inline bool json_parse_string(JsonParser* p, const char** string, uint32_t* bytes) {
    *string = p->free;
    p->at++;
    for (int c; (c = json_peek(p)) != '"';) {
        if (c < 0) return json_syntax(p, "the text ends within a string");
        if (c < 32) return json_syntax(p, "a string must not contain the byte 0x%02x; it is written \\u%04x", c, c);
        if (c == '\\') {
            if (!json_parse_escape(p)) return false;
            continue;
        }
        const size_t n = json_utf8_bytes(p->text + p->at, p->size - p->at);
        if (n == 0) return json_syntax(p, "the byte 0x%02x is not UTF-8 here", c);
        for (size_t i = 0; i < n; i++) *p->free++ = (char)p->text[p->at++];
        p->line_start += n - 1;
    }
    p->at++;
    *bytes = (uint32_t)(p->free - *string);
    *p->free++ = 0;
    return true;
}

static inline bool json_skip_digits(JsonParser* p) {
    const size_t start = p->at;
    while (json_peek(p) >= '0' && json_peek(p) <= '9') p->at++;
    return p->at > start || json_unexpected(p, "a digit");
}

static inline bool json_parse_number(JsonParser* p, JsonNode* node) {
    const size_t start = p->at;
    if (json_peek(p) == '-') p->at++;
    if (json_peek(p) == '0')
        p->at++;
    else if (!json_skip_digits(p))
        return false;
    bool integral = true;
    if (json_peek(p) == '.') {
        integral = false;
        p->at++;
        if (!json_skip_digits(p)) return false;
    }
    if (json_peek(p) == 'e' || json_peek(p) == 'E') {
        integral = false;
        p->at++;
        if (json_peek(p) == '+' || json_peek(p) == '-') p->at++;
        if (!json_skip_digits(p)) return false;
    }
    const size_t n = p->at - start;
    // A copy that ends with NUL, in the block of strings, where the number's own bytes are still free.
    memcpy(p->free, p->text + start, n);
    p->free[n] = 0;
    node->type = JSON_INTEGER;
    errno = 0;
    node->value.integer = integral ? strtoll(p->free, NULL, 10) : 0;
    if (integral && errno == 0) return true;
    node->type = JSON_REAL;
    node->value.real = strtod(p->free, NULL); // with '.', since setlocale is never called
    if (isfinite(node->value.real)) return true;
    p->at = start;
    return json_syntax(p, "this number is too large for a double");
}

static inline bool json_parse_word(JsonParser* p, const char* word) {
    for (; *word; word++, p->at++)
        if (json_peek(p) != *word) return json_unexpected(p, "a value");
    return true;
}

static inline const JsonNode* json_first(const JsonNode* parent) {
    return (parent->type == JSON_ARRAY || parent->type == JSON_OBJECT) && parent->count > 0 ? parent + 1 : NULL;
}
static inline const JsonNode* json_next(const JsonNode* node) { return node->next ? node + node->next : NULL; }

static inline bool json_parse_value(JsonParser* p, int depth, const char* name, uint32_t name_bytes);

// Parses the children of an array or an object, from its opening bracket to after the closing one.
static inline bool json_parse_children(JsonParser* p, int depth, uint32_t parent) {
    const bool object = p->json->nodes[parent].type == JSON_OBJECT;
    const int closing = object ? '}' : ']';
    if (depth > JSON_MAX_DEPTH)
        return json_syntax(p, "more than %d arrays and objects inside one another", JSON_MAX_DEPTH);
    p->at++;
    json_skip_space(p);
    uint32_t count = 0, previous = 0;
    while (json_peek(p) != closing || count > 0) {
        const char* name = NULL;
        uint32_t name_bytes = 0;
        if (object) {
            if (json_peek(p) != '"') return json_unexpected(p, count ? "a name in quotes" : "a name in quotes or '}'");
            if (!json_parse_string(p, &name, &name_bytes)) return false;
            json_skip_space(p);
            if (json_peek(p) != ':') return json_unexpected(p, "':'");
            p->at++;
            json_skip_space(p);
        }
        const uint32_t child = p->json->count;
        if (!json_parse_value(p, depth, name, name_bytes)) return false;
        if (count++ > 0) p->json->nodes[previous].next = child - previous;
        previous = child;
        json_skip_space(p);
        if (json_peek(p) == closing) break;
        if (json_peek(p) != ',') return json_unexpected(p, object ? "',' or '}'" : "',' or ']'");
        p->at++;
        json_skip_space(p);
    }
    p->at++;
    p->json->nodes[parent].count = count;
    return true;
}

// Parses one value, inside `depth` arrays and objects.
static inline bool json_parse_value(JsonParser* p, int depth, const char* name, uint32_t name_bytes) {
    if (p->json->count == (uint32_t)p->capacity)
        p->json->nodes = (JsonNode*)checked_grow(p->json->nodes, &p->capacity, 16, sizeof(JsonNode), "JSON");
    const uint32_t index = p->json->count++;
    JsonNode* node = &p->json->nodes[index]; // until a child moves the array
    memset(node, 0, sizeof *node);
    node->line = p->line;
    node->column = (uint32_t)(p->at - p->line_start + 1);
    node->name = name;
    node->name_bytes = name_bytes;
    switch (json_peek(p)) {
    case '{': node->type = JSON_OBJECT; return json_parse_children(p, depth + 1, index);
    case '[': node->type = JSON_ARRAY; return json_parse_children(p, depth + 1, index);
    case '"': node->type = JSON_STRING; return json_parse_string(p, &node->value.string, &node->count);
    case 't':
        node->type = JSON_BOOL;
        node->value.boolean = true;
        return json_parse_word(p, "true");
    case 'f': node->type = JSON_BOOL; return json_parse_word(p, "false");
    case 'n': return json_parse_word(p, "null");
    default: break;
    }
    const int c = json_peek(p);
    return c == '-' || (c >= '0' && c <= '9') ? json_parse_number(p, node) : json_unexpected(p, "a value");
}

// Reads a text of `size` bytes; `path` is its name in errors. On failure nothing has to be freed.
static inline bool json_parse(Json* json, const char* path, const void* text, size_t size, Error* error) {
    memset(json, 0, sizeof *json);
    if (size >= UINT32_MAX) return fail(error, "%s: %zu bytes of JSON; 4 GB are the limit", path, size);
    const size_t path_bytes = strlen(path) + 1;
    json->strings = (char*)checked_malloc(path_bytes + size + 1, path);
    memcpy(json->strings, path, path_bytes);
    json->path = json->strings;
    JsonParser parser = {(const unsigned char*)text, size, 0, 0, 1, json->strings + path_bytes, 0, json, error};
    json_skip_space(&parser);
    if (json_parse_value(&parser, 0, NULL, 0)) {
        json_skip_space(&parser);
        if (parser.at == size || json_unexpected(&parser, "the end of the text")) return true;
    }
    json_free(json);
    return false;
}

// Reads a file. On failure nothing has to be freed.
static inline bool json_open(Json* json, const char* path, Error* error) {
    MappedFile file;
    if (!file_map(&file, path, error)) return false;
    const bool ok = json_parse(json, path, file.data, file.size, error);
    file_unmap(&file);
    return ok;
}

// ----------------------------------------------------------------------------------------------------------------
// Looking up. json_first and json_next iterate members; the functions below take time proportional to their number.

static inline bool json_is_named(const JsonNode* member, const char* name) {
    return strlen(name) == member->name_bytes && memcmp(member->name, name, member->name_bytes) == 0;
}

// Whether a node is a string without NUL characters, so that nothing is lost if it is used as a C string.
static inline bool json_is_plain_string(const JsonNode* node) {
    return node->type == JSON_STRING && strlen(node->value.string) == node->count;
}

// The member of this name; NULL: there is none, or `object` is no object.
static inline const JsonNode* json_get(const JsonNode* object, const char* key) {
    if (object->type != JSON_OBJECT) return NULL;
    for (const JsonNode* m = json_first(object); m; m = json_next(m))
        if (json_is_named(m, key)) return m;
    return NULL;
}

// The value of a JSON_INTEGER or a JSON_REAL.
static inline double json_number(const JsonNode* node) {
    return node->type == JSON_INTEGER ? (double)node->value.integer : node->value.real;
}

// The member of this name and type, or NULL and an error. JSON_REAL means any number; read it with json_number.
static inline const JsonNode* json_require(const Json* json, const JsonNode* object, const char* key, JsonType type,
                                           Error* error) {
    const JsonNode* node = json_get(object, key);
    if (object->type != JSON_OBJECT)
        json_fail(json, object, error, "an object with \"%s\" expected, not %s", key, json_type_name(object->type));
    else if (!node)
        json_fail(json, object, error, "\"%s\" is missing", key);
    else if (node->type != type && !(node->type == JSON_INTEGER && type == JSON_REAL))
        json_fail(json, node, error, "\"%s\" has to be %s, not %s", key, json_type_name(type),
                  json_type_name(node->type));
    else
        return node;
    return NULL;
}

// json_require for one type each. They do not change *out when they fail.
static inline bool json_get_integer(int64_t* out, const Json* json, const JsonNode* object, const char* key,
                                    int64_t min, int64_t max, Error* error) {
    const JsonNode* node = json_require(json, object, key, JSON_INTEGER, error);
    if (!node) return false;
    const int64_t value = node->value.integer;
    if (value < min || value > max)
        return json_fail(json, node, error, "\"%s\" is %lld; it has to be from %lld to %lld", key, (long long)value,
                         (long long)min, (long long)max);
    *out = value;
    return true;
}

static inline bool json_get_number(double* out, const Json* json, const JsonNode* object, const char* key,
                                   Error* error) {
    const JsonNode* node = json_require(json, object, key, JSON_REAL, error);
    if (node) *out = json_number(node);
    return node != NULL;
}

static inline bool json_get_bool(bool* out, const Json* json, const JsonNode* object, const char* key, Error* error) {
    const JsonNode* node = json_require(json, object, key, JSON_BOOL, error);
    if (node) *out = node->value.boolean;
    return node != NULL;
}

// A string without NUL characters. *out is valid until json_free.
static inline bool json_get_string(const char** out, const Json* json, const JsonNode* object, const char* key,
                                   Error* error) {
    const JsonNode* node = json_require(json, object, key, JSON_STRING, error);
    if (!node) return false;
    if (!json_is_plain_string(node)) return json_fail(json, node, error, "\"%s\" contains a NUL character", key);
    *out = node->value.string;
    return true;
}

// ---- Writing ----------------------------------------------------------------------------------------------------

// Writes a string with its quotes. Bytes that are not UTF-8 become U+FFFD, the replacement character. The caller checks
// ferror(f) when it is done with the file.
static inline void json_write_string(FILE* f, const char* string) {
    const unsigned char* s = (const unsigned char*)string;
    fputc('"', f);
    for (size_t left = strlen(string); left > 0;) {
        const size_t n = json_utf8_bytes(s, left);
        if (n == 0)
            fputs("\\ufffd", f);
        else if (*s == '"' || *s == '\\')
            fprintf(f, "\\%c", *s);
        else if (*s == '\n')
            fputs("\\n", f);
        else if (*s == '\t')
            fputs("\\t", f);
        else if (*s < 32 || *s == 127)
            fprintf(f, "\\u%04x", *s);
        else
            fwrite(s, 1, n, f);
        s += n ? n : 1;
        left -= n ? n : 1;
    }
    fputc('"', f);
}
