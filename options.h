/*
options.h: the command line as one table. A program lists its options once (name, type, where the value goes, range,
help) and gets parsing, range checks, suggestions for misspelt names, and --help from the same rows.

    --name value   --name=value   --flag            each at most once
*/
#ifndef OPTIONS_H
#define OPTIONS_H

#include "base.h"

typedef enum { OPTION_INT, OPTION_FLOAT, OPTION_STRING, OPTION_CHOICE, OPTION_FLAG, OPTION_HEADING } OptionType;

typedef struct {
    OptionType type;
    const char* name;    // without the dashes; the text of a heading
    void* value;         // int64_t*, double*, const char**, int* (index of the choice), bool*
    double low, high;    // range of a number, both ends included
    const char* choices; // OPTION_CHOICE: "cosine|linear|wsd"; OPTION_STRING: what stands for the value in the help
    const char* help;
    bool given; // set by options_parse
} Option;

// The rows of a table.
static inline Option option_heading(const char* text) {
    const Option o = {OPTION_HEADING, text, NULL, 0, 0, NULL, NULL, false};
    return o;
}
static inline Option option_int(const char* name, int64_t* value, double low, double high, const char* help) {
    const Option o = {OPTION_INT, name, value, low, high, NULL, help, false};
    return o;
}
static inline Option option_float(const char* name, double* value, double low, double high, const char* help) {
    const Option o = {OPTION_FLOAT, name, value, low, high, NULL, help, false};
    return o;
}
static inline Option option_string(const char* name, const char** value, const char* placeholder, const char* help) {
    const Option o = {OPTION_STRING, name, (void*)value, 0, 0, placeholder, help, false};
    return o;
}
static inline Option option_choice(const char* name, int* value, const char* choices, const char* help) {
    const Option o = {OPTION_CHOICE, name, value, 0, 0, choices, help, false};
    return o;
}
static inline Option option_flag(const char* name, bool* value, const char* help) {
    const Option o = {OPTION_FLAG, name, value, 0, 0, NULL, help, false};
    return o;
}

// Index of word in "a|b|c", or -1.
static inline int choice_index(const char* choices, const char* word) {
    const size_t length = strlen(word);
    int index = 0;
    for (const char* at = choices;; index++) {
        const size_t n = strcspn(at, "|");
        if (n == length && strncmp(at, word, n) == 0) return index;
        if (at[n] == 0) return -1;
        at += n + 1;
    }
}

// Writes choice number `index` of "a|b|c" into word.
static inline void choice_word(char* word, size_t size, const char* choices, int index) {
    for (; index > 0; index--) choices += strcspn(choices, "|") + 1;
    snprintf(word, size, "%.*s", (int)strcspn(choices, "|"), choices);
}

// Edit distance (Levenshtein) of two option names; names longer than 31 characters count as far apart.
static inline int edit_distance(const char* a, const char* b) {
    int row[32];
    const int na = (int)strlen(a), nb = (int)strlen(b);
    if (na > 31 || nb > 31) return 99;
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            const int substitute = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            const int insert = row[j - 1] + 1, erase = row[j] + 1;
            row[j] = substitute < insert ? substitute : insert;
            if (erase < row[j]) row[j] = erase;
        }
    }
    return row[nb];
}

static inline Option* option_find(Option* table, int n, const char* name) {
    for (int i = 0; i < n; i++) {
        if (table[i].type != OPTION_HEADING && strcmp(table[i].name, name) == 0) return &table[i];
    }
    return NULL;
}

static inline bool option_given(Option* table, int n, const char* name) {
    const Option* o = option_find(table, n, name);
    return o && o->given;
}

static inline bool option_unknown(Option* table, int n, const char* name, Error* error) {
    const Option* nearest = NULL;
    int best = 4;
    for (int i = 0; i < n; i++) {
        if (table[i].type == OPTION_HEADING) continue;
        const int distance = edit_distance(name, table[i].name);
        if (distance < best) best = distance, nearest = &table[i];
    }
    if (nearest) return fail(error, "unknown option --%s; did you mean --%s?", name, nearest->name);
    return fail(error, "unknown option --%s; --help lists them all", name);
}

static inline bool option_set(Option* o, const char* text, Error* error) {
    char* end = NULL;
    errno = 0;
    switch (o->type) {
    case OPTION_INT: {
        const long long x = strtoll(text, &end, 10);
        if (end == text || *end || errno) return fail(error, "--%s %s: not a whole number", o->name, text);
        if ((double)x < o->low || (double)x > o->high)
            return fail(error, "--%s %s: out of range, %.0f to %.0f", o->name, text, o->low, o->high);
        *(int64_t*)o->value = x;
        return true;
    }
    case OPTION_FLOAT: {
        const double x = strtod(text, &end);
        if (end == text || *end) return fail(error, "--%s %s: not a number", o->name, text);
        if (!(x >= o->low && x <= o->high))
            return fail(error, "--%s %s: out of range, %g to %g", o->name, text, o->low, o->high);
        *(double*)o->value = x;
        return true;
    }
    case OPTION_CHOICE: {
        const int index = choice_index(o->choices, text);
        if (index < 0) return fail(error, "--%s %s: has to be one of %s", o->name, text, o->choices);
        *(int*)o->value = index;
        return true;
    }
    default: // OPTION_STRING
        if (*text == 0) return fail(error, "--%s: empty value", o->name);
        *(const char**)o->value = text;
        return true;
    }
}

// Reads argv into the values of the table. The strings stay argv's.
static inline bool options_parse(Option* table, int n, int argc, char** argv, Error* error) {
    for (int i = 1; i < argc; i++) {
        const char* word = argv[i];
        if (strncmp(word, "--", 2) != 0 || word[2] == 0)
            return fail(error, "%s: options are written --name value; --help lists them", word);
        char name[64];
        const size_t length = strcspn(word + 2, "=");
        snprintf(name, sizeof name, "%.*s", (int)length, word + 2);
        const char* value = word[2 + length] == '=' ? word + 2 + length + 1 : NULL;
        Option* o = option_find(table, n, name);
        if (!o) return option_unknown(table, n, name, error);
        if (o->given) return fail(error, "--%s is given twice", name);
        o->given = true;
        if (o->type == OPTION_FLAG) {
            if (value) return fail(error, "--%s takes no value", name);
            *(bool*)o->value = true;
            continue;
        }
        if (!value && ++i == argc) return fail(error, "--%s: the value is missing", name);
        if (!option_set(o, value ? value : argv[i], error)) return false;
    }
    return true;
}

// The table as people read it, with defaults as the values stand now.
static inline void options_help(const Option* table, int n, FILE* out) {
    for (int i = 0; i < n; i++) {
        const Option* o = &table[i];
        char left[64], value[128] = "";
        switch (o->type) {
        case OPTION_HEADING: fprintf(out, "\n%s\n", o->name); continue;
        case OPTION_INT: snprintf(value, sizeof value, "%lld", (long long)*(int64_t*)o->value); break;
        case OPTION_FLOAT: snprintf(value, sizeof value, "%g", *(double*)o->value); break;
        case OPTION_STRING:
            snprintf(value, sizeof value, "%s", *(const char**)o->value ? *(const char**)o->value : "");
            break;
        case OPTION_CHOICE: choice_word(value, sizeof value, o->choices, *(int*)o->value); break;
        case OPTION_FLAG: break;
        }
        const char* placeholder = o->choices                ? o->choices
                                  : o->type == OPTION_INT   ? "N"
                                  : o->type == OPTION_FLOAT ? "X"
                                                            : "";
        snprintf(left, sizeof left, "--%s %s", o->name, placeholder);
        fprintf(out, "  %-32s %s", left, o->help);
        const bool unset = o->type == OPTION_INT && (double)*(int64_t*)o->value < o->low; // 0: it follows from others
        if (value[0] && !unset) fprintf(out, " [%s]", value);
        fprintf(out, "\n");
    }
}

#endif
