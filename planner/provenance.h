/*
provenance.h: numbers with a mark of how well they are known, and their units; files of them, one value a line.

A Fact is a value and a mark, which is as weak as the weakest fact that the value follows from. To compute the marks of
results automatically, a formula reads its facts by use() and returns by result():

    Mark w = BACK_COMPUTED;
    p->power = result(&w, use(&w, p->racks) * use(&w, d->rack_power));

Theory: use() yields the value and notes the mark in w if it is weaker; result() returns value and mark and resets w. A
computed value is at best back-computed, even from confirmed facts. It is confirmed where it equals a published number
(fact_published), but not if it follows from an assumed fact. A fact that decides a value without being in the formula,
a limit or a choice, has to be read by use(), too; test_datacenter.c changes every input and checks the marks of all
results that change.
*/
#pragma once

#include "../util/base.h"

// ---- Facts and marks --------------------------------------------------------------------------------------------

typedef enum { CONFIRMED, BACK_COMPUTED, ASSUMED, MARKS } Mark; // from strong to weak
static const char* const mark_names[MARKS] = {"confirmed", "back-computed", "assumed"};

typedef struct {
    double value;
    Mark mark;
} Fact;

static inline Fact fact(double value, Mark mark) {
    const Fact f = {value, mark};
    return f;
}

// Reads a fact in a formula.
static inline double use(Mark* weakest, Fact f) {
    if (f.mark > *weakest) *weakest = f.mark;
    return f.value;
}

// The result of the formula. Resets the mark for the next one.
static inline Fact result(Mark* weakest, double value) {
    const Fact f = {value, *weakest};
    *weakest = BACK_COMPUTED;
    return f;
}

// A number that was computed and also published; the two differ by `within` at most.
static inline Fact fact_published(Fact f, double published, double within) {
    if (f.mark == BACK_COMPUTED && fabs(f.value - published) <= within) f.mark = CONFIRMED;
    return f;
}

// ---- Quantities: the units of inputs and outputs ----------------------------------------------------------------

typedef enum {
    HEADING, // no number
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

// "-": there is none.
static inline void quantity_text(char* text, size_t size, double value, Quantity quantity) {
    snprintf(text, size, "-");
    if (!isfinite(value)) return;
    switch (quantity) {
    case HEADING: text[0] = 0; return;
    case LARGE: { // 1.20e30, where C has 1.20e+30
        snprintf(text, size, "%.2e", value);
        char* e = strchr(text, 'e');
        if (e) snprintf(e, size - (size_t)(e - text), "e%d", atoi(e + 1));
        return;
    }
    case PERCENT:
        if (value < 0.001)
            snprintf(text, size, "%.2g %%", value * 100);
        else
            snprintf(text, size, "%.*f %%", value < 0.1 ? 2 : 1, value * 100);
        return;
    case PARAMETERS: snprintf(text, size, "%.4g T", value / 1e12); return;
    case MONEY: snprintf(text, size, value >= 1e9 ? "%.1f B$" : "%.2f M$", value / (value >= 1e9 ? 1e9 : 1e6)); return;
    case POWER: text_with_prefix(text, size, value, "W"); return;
    case FLOPS: text_with_prefix(text, size, value, "FLOP/s"); return;
    case BYTES: text_with_prefix(text, size, value, "B"); return;
    case BYTE_RATE: text_with_prefix(text, size, value, "B/s"); return;
    case BIT_RATE: text_with_prefix(text, size, value, "bit/s"); return;
    case SECONDS:
        if (value > 0 && value < 0.1)
            snprintf(text, size, "%.3g ms", value * 1e3);
        else if (value < 999.5)
            text_with_prefix(text, size, value, "s");
        else
            break;
        return;
    case BITS:
    case DAYS:
    case NUMBER: break;
    }
    if (value >= (quantity == DAYS ? 100 : 1000) || value == floor(value))
        text_of_count(text, size, value);
    else
        snprintf(text, size, "%.4g", value);
    if (quantity == DAYS) append_text(text, size, " d");
    if (quantity == BITS) append_text(text, size, " bit");
    if (quantity == SECONDS) append_text(text, size, " s");
}

// ---- Files: one value a line, "name value [unit] ..."; # begins a comment ---------------------------------------

// The value after a name, with its unit as one or two words; refused below `low` and above `high`.
static inline bool value_read(const char* name, char** words, int n, Quantity quantity, bool whole, double low,
                              double high, double* value, Error* error) {
    char units[64], from[32], to[32];
    quantity_units(units, sizeof units, quantity);
    if (n < 1 || n > 2 || !quantity_read(words[0], n == 2 ? words[1] : NULL, quantity, value))
        return fail(error, "%s: \"%.40s%s%.40s\" is not a number%s%s", name, n < 1 ? "" : words[0], n < 2 ? "" : " ",
                    n < 2 ? "" : words[1], *units ? " with one of the units " : " alone", units);
    if (whole && *value != floor(*value)) return fail(error, "%s: \"%.40s\" is not a whole number", name, words[0]);
    if (*value >= low && *value <= high) return true;
    const Quantity text = quantity == PARAMETERS ? LARGE : quantity; // a limit may be far below 1 T
    quantity_text(from, sizeof from, low, text);
    quantity_text(to, sizeof to, high, text);
    return fail(error, "%s: \"%.40s\" is out of range, %s to %s", name, words[0], from, to);
}

enum { LINE_WORDS = 16 };

// Takes the n > 0 words of a line, or refuses them; lines_read adds path and line to the error.
typedef bool (*LineReader)(void* context, int line, char** words, int n, Error* error);

static inline bool line_read(char* text, bool whole, int line, LineReader read, void* context, Error* error) {
    char *words[LINE_WORDS], *save = NULL;
    int n = 0;
    if (!whole) return fail(error, "longer than %zu characters, or with a zero byte", strlen(text) - 1);
    text[strcspn(text, "#")] = 0;
    for (char* w = strtok_r(text, " \t\r\n", &save); w; w = strtok_r(NULL, " \t\r\n", &save)) {
        if (n == LINE_WORDS) return fail(error, "more than %d words", LINE_WORDS);
        words[n++] = w;
    }
    return n == 0 || read(context, line, words, n, error);
}

// Passes the words of every line that has some to `read`.
static inline bool lines_read(const char* path, LineReader read, void* context, Error* error) {
    FILE* file = fopen(path, "r");
    if (!file) return fail(error, "%s: cannot open: %s", path, strerror(errno));
    char text[512];
    Error why;
    bool ok = true;
    for (int line = 1; ok && fgets(text, sizeof text, file); line++) {
        ok = line_read(text, strchr(text, '\n') || feof(file), line, read, context, &why);
        if (!ok) fail(error, "%s:%d: %.900s", path, line, why.text);
    }
    if (ok && ferror(file)) ok = fail(error, "%s: cannot be read: %s", path, strerror(errno));
    fclose(file);
    return ok;
}
