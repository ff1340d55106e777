/*
fields.h: files of named numbers with units, one field a line, and such numbers as text.

    fields_read      reads the fields of a struct, which a table describes
    quantity_text    a number with its unit

A line is "name value [unit]", of a list "name value value ...". # begins a comment, which says where the number comes
from, or "assumed". The files that the planner knows by name are in planner/clusters.
*/
#pragma once

#include "../util/base.h"

#include <limits.h>
#include <stddef.h>

// ---- Quantities and their units ---------------------------------------------------------------------------------

typedef enum {
    NUMBER,
    LARGE, // printed as 1.2e30
    PERCENT,
    PARAMETERS,
    MONEY,
    POWER,
    FLOPS,
    BITS,
    BYTES,
    BYTE_RATE,
    BIT_RATE,
    SECONDS,
    DAYS
} Quantity;

typedef struct {
    Quantity quantity;
    const char* name;
    double times, over; // value = number * times / over: 70 % is exactly 0.7
} Unit;

static const Unit units_known[] = {
    {NUMBER, "", 1, 1},
    {PERCENT, "%", 1, 100},
    {PARAMETERS, "", 1, 1},
    {PARAMETERS, "B", 1e9, 1},
    {PARAMETERS, "T", 1e12, 1},
    {MONEY, "$", 1, 1},
    {MONEY, "M$", 1e6, 1},
    {MONEY, "B$", 1e9, 1},
    {POWER, "W", 1, 1},
    {POWER, "kW", 1e3, 1},
    {POWER, "MW", 1e6, 1},
    {POWER, "GW", 1e9, 1},
    {FLOPS, "TFLOP/s", 1e12, 1},
    {FLOPS, "PFLOP/s", 1e15, 1},
    {BITS, "bit", 1, 1},
    {BYTES, "B", 1, 1},
    {BYTES, "GB", 1e9, 1},
    {BYTES, "TB", 1e12, 1},
    {BYTE_RATE, "GB/s", 1e9, 1},
    {BYTE_RATE, "TB/s", 1e12, 1},
    {BYTE_RATE, "Gbit/s", 1e9, 8},
    {BYTE_RATE, "Tbit/s", 1e12, 8},
    {BIT_RATE, "Gbit/s", 1e9, 1},
    {BIT_RATE, "Tbit/s", 1e12, 1},
    {SECONDS, "us", 1, 1e6},
    {SECONDS, "ms", 1, 1e3},
    {SECONDS, "s", 1, 1},
    {DAYS, "d", 1, 1},
};
enum { UNITS_KNOWN = sizeof units_known / sizeof units_known[0] };

// "s, ms, us", for messages; empty for a plain number.
static inline void quantity_units(char* text, size_t size, Quantity quantity) {
    text[0] = 0;
    for (int i = 0; i < UNITS_KNOWN; i++) {
        const Unit* u = &units_known[i];
        if (u->quantity == quantity && *u->name) append_text(text, size, *text ? ", %s" : "%s", u->name);
    }
}

// Reads "3.62GW", or "3.62" with the unit as a separate word. Decimal digits only: no hexadecimal, inf or nan.
static inline bool quantity_read(const char* word, const char* unit, Quantity quantity, double* value) {
    char* end;
    const double x = strtod(word, &end);
    const size_t number = (size_t)(end - word);
    if (number == 0 || strspn(word, "0123456789.eE+-") < number || (unit && *end)) return false;
    for (int i = 0; i < UNITS_KNOWN; i++) {
        const Unit* u = &units_known[i];
        if (u->quantity != quantity || strcmp(u->name, unit ? unit : end) != 0) continue;
        *value = x * u->times / u->over;
        return isfinite(*value);
    }
    return false;
}

// Formats 1677600 as 1,677,600.
static inline void text_of_count(char* text, size_t size, double value) {
    char digits[64];
    snprintf(digits, sizeof digits, "%.0f", value);
    const size_t n = strlen(digits);
    size_t at = 0;
    for (size_t i = 0; i < n && at + 2 < size; i++) {
        if (i > 0 && (n - i) % 3 == 0) text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = 0;
}

// Three digits, with k, M, G, T, P or E before the unit: 154 kW, 3.62 GW.
static inline void text_with_prefix(char* text, size_t size, double value, const char* unit) {
    static const char* const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    int i = 0;
    for (; fabs(value) >= 999.5 && i < 6; i++) value /= 1000;
    const int digits = (fabs(value) < 99.95) + (fabs(value) < 9.995);
    snprintf(text, size, "%.*f %s%s", digits, value, prefixes[i], unit);
}

// 1.20e30, where C has 1.20e+30.
static inline void text_of_large(char* text, size_t size, double value) {
    const int power = value > 0 ? (int)floor(log10(value) + 1e-12) : 0;
    snprintf(text, size, "%.2fe%d", value / pow(10, power), power);
}

// "-": there is none.
static inline void quantity_text(char* text, size_t size, double value, Quantity quantity) {
    static const char* const prefixed[DAYS + 1] = {
        [POWER] = "W", [FLOPS] = "FLOP/s", [BYTES] = "B", [BYTE_RATE] = "B/s", [BIT_RATE] = "bit/s"};
    const bool billions = value >= 1e9, exact = value < 0.1;
    if (!isfinite(value))
        snprintf(text, size, "-");
    else if (prefixed[quantity])
        text_with_prefix(text, size, value, prefixed[quantity]);
    else if (quantity == LARGE)
        text_of_large(text, size, value);
    else if (quantity == PERCENT && value < 0.001)
        snprintf(text, size, "%.2g %%", value * 100);
    else if (quantity == PERCENT)
        snprintf(text, size, "%.*f %%", exact ? 2 : 1, value * 100);
    else if (quantity == PARAMETERS)
        snprintf(text, size, "%.4g T", value / 1e12);
    else if (quantity == MONEY)
        snprintf(text, size, billions ? "%.1f B$" : "%.2f M$", value / (billions ? 1e9 : 1e6));
    else if (quantity == SECONDS && value > 0 && exact)
        snprintf(text, size, "%.3g ms", value * 1e3);
    else if (quantity == SECONDS && value < 999.5)
        text_with_prefix(text, size, value, "s");
    else if (value >= (quantity == DAYS ? 100 : 1000) || value == floor(value))
        text_of_count(text, size, value);
    else
        snprintf(text, size, "%.4g", value);
    if (!isfinite(value)) return;
    if (quantity == DAYS) append_text(text, size, " d");
    if (quantity == BITS) append_text(text, size, " bit");
    if (quantity == SECONDS && value >= 999.5) append_text(text, size, " s");
}

// ---- Fields -----------------------------------------------------------------------------------------------------

enum { FIELDS_MOST = 64, LINE_WORDS = 16, NUMBERS_MOST = 8 };

// A list of numbers in a struct.
typedef struct {
    int n;
    double x[NUMBERS_MOST];
} Numbers;

typedef enum { REAL, INTEGER, LIST } FieldKind; // a double, an int, Numbers

typedef struct {
    const char* name;
    size_t at; // in the struct
    Quantity quantity;
    FieldKind kind;
    double low, high; // both included
} Field;

// A field's value; a list's first.
static inline double field_value(const Field* f, const void* from) {
    const void* at = (const char*)from + f->at;
    if (f->kind == LIST) return ((const Numbers*)at)->x[0];
    return f->kind == INTEGER ? *(const int*)at : *(const double*)at;
}

// One value of a field, in one or two of n words. Returns how many; 0, with the reason: it is wrong.
static inline int field_number(const Field* f, char** words, int n, double* value, Error* error) {
    char units[64];
    const int used = n > 1 && quantity_read(words[0], words[1], f->quantity, value) ? 2 : 1;
    quantity_units(units, sizeof units, f->quantity);
    if (n < 1 || (used == 1 && !quantity_read(words[0], NULL, f->quantity, value)))
        fail(error, "%s: \"%.40s%s%.40s\" is not a number%s%s", f->name, n < 1 ? "" : words[0], n < 2 ? "" : " ",
             n < 2 ? "" : words[1], *units ? " with one of the units " : " alone", units);
    else if (f->kind == INTEGER && *value != floor(*value))
        fail(error, "%s: \"%.40s\" is not a whole number", f->name, words[0]);
    else if (*value < f->low || *value > f->high)
        fail(error, "%s: %g is out of range, %g to %g", f->name, *value, f->low, f->high);
    else
        return used;
    return 0;
}

// Reads a field from the words after its name.
static inline bool field_read(const Field* f, void* into, char** words, int n, Error* error) {
    void* at = (char*)into + f->at;
    Numbers numbers = {0, {0}};
    int used = 0, more = 1;
    while (more > 0 && (numbers.n == 0 || (f->kind == LIST && used < n && numbers.n < NUMBERS_MOST))) {
        more = field_number(f, words + used, n - used, &numbers.x[numbers.n++], error);
        used += more;
    }
    if (more == 0) return false;
    if (used < n) return fail(error, "%s: \"%.40s\" is more than it takes", f->name, words[used]);
    if (f->kind == LIST) *(Numbers*)at = numbers;
    if (f->kind == INTEGER) *(int*)at = (int)numbers.x[0];
    if (f->kind == REAL) *(double*)at = numbers.x[0];
    return true;
}

// ---- Files ------------------------------------------------------------------------------------------------------

// Called with the struct and the words of a line that no field has; sets *known if it takes them. False: the line is
// wrong.
typedef bool (*OtherLine)(void* into, char** words, int n, bool* known, Error* error);

typedef struct {
    const Field* fields; // n of them, of the struct `into`
    int n;
    void* into;
    OtherLine other;         // may be NULL
    const char* other_names; // for messages
    int depth, lines;        // bases above this file; its lines with words so far
    int given[FIELDS_MOST];  // the line that has a field; 0: none yet
} FieldReader;

static inline bool fields_read_base(const FieldReader* r, const char* name, Error* error);

static inline bool fields_unknown(const FieldReader* r, const char* name, Error* error) {
    char all[900];
    snprintf(all, sizeof all, "%s", r->other_names);
    for (int i = 0; i < r->n; i++) append_text(all, sizeof all, ", %s", r->fields[i].name);
    return fail(error, "\"%.40s\" is not known; there are %s", name, all);
}

static inline bool fields_read_words(FieldReader* r, char** words, int n, int line, Error* error) {
    bool known = false;
    r->lines++;
    if (strcmp(words[0], "base") == 0) {
        if (n == 2 && r->lines == 1) return fields_read_base(r, words[1], error);
        return fail(error, "base: has to be the first line, with one name");
    }
    for (int i = 0; i < r->n; i++) {
        if (strcmp(words[0], r->fields[i].name) != 0) continue;
        if (r->given[i]) return fail(error, "%s: given in line %d already", words[0], r->given[i]);
        r->given[i] = line;
        return field_read(&r->fields[i], r->into, words + 1, n - 1, error);
    }
    if (r->other && !r->other(r->into, words, n, &known, error)) return false;
    return known || fields_unknown(r, words[0], error);
}

static inline bool fields_read_line(FieldReader* r, char* text, bool whole, int line, Error* error) {
    char *words[LINE_WORDS], *save = NULL;
    int n = 0;
    if (!whole) return fail(error, "longer than %zu characters, or with a zero byte", strlen(text) - 1);
    text[strcspn(text, "#")] = 0;
    for (char* w = strtok_r(text, " \t\r\n", &save); w; w = strtok_r(NULL, " \t\r\n", &save)) {
        if (n == LINE_WORDS) return fail(error, "more than %d words", LINE_WORDS);
        words[n++] = w;
    }
    return n == 0 || fields_read_words(r, words, n, line, error);
}

static inline bool fields_read(FieldReader* r, const char* path, Error* error) {
    FILE* file = fopen(path, "r");
    if (!file) return fail(error, "%s: cannot open: %s", path, strerror(errno));
    char text[512];
    Error why;
    bool ok = true;
    for (int line = 1; ok && fgets(text, sizeof text, file); line++) {
        ok = fields_read_line(r, text, strchr(text, '\n') || feof(file), line, &why);
        if (!ok) fail(error, "%s:%d: %.900s", path, line, why.text);
    }
    if (ok && ferror(file)) ok = fail(error, "%s: cannot be read: %s", path, strerror(errno));
    fclose(file);
    return ok;
}

// ---- Files with names -------------------------------------------------------------------------------------------

// The path of a file of this folder, as clusters/selene.txt: beside the program or above it, in share/ of where it is
// installed, or where this folder was when it was compiled. False: there is none.
static inline bool planner_path(char path[PATH_MAX], const char* name) {
    static const char* const places[] = {"planner", "share/threefold"};
    char folder[PATH_MAX - 300];
    const ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[n > 0 ? n : 0] = 0;
    for (char* slash = strrchr(folder, '/'); slash; slash = strrchr(folder, '/')) {
        *slash = 0;
        for (int i = 0; i < 2; i++) {
            snprintf(path, PATH_MAX, "%s/%s/%.200s", folder, places[i], name);
            if (access(path, R_OK) == 0) return true;
        }
    }
    snprintf(path, PATH_MAX, "%.*s%.200s", (int)(strrchr(__FILE__, '/') + 1 - __FILE__), __FILE__, name);
    return access(path, R_OK) == 0;
}

// The path of clusters/NAME.txt. False: there is none.
static inline bool fields_path(char path[PATH_MAX], const char* name) {
    char file[100];
    snprintf(file, sizeof file, "clusters/%.80s.txt", name);
    return !strchr(name, '/') && planner_path(path, file);
}

// Reads clusters/NAME.txt into the same struct.
static inline bool fields_read_base(const FieldReader* r, const char* name, Error* error) {
    char path[PATH_MAX];
    FieldReader base = *r;
    base.depth++;
    base.lines = 0;
    memset(base.given, 0, sizeof base.given);
    if (base.depth > 4 || !fields_path(path, name))
        return fail(error, "base: \"%.40s\" is not known; what there is, is in planner/clusters", name);
    return fields_read(&base, path, error);
}
