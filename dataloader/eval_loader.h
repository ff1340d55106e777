/*
dataloader/eval_loader.h: what a model is measured by besides the validation loss: questions of multiple choice, and the perplexity of texts.
Here are the files, the rows that a model passes over, and the scores that follow from their losses; the passes are in
train_gpt.cu. Nothing here knows ranks.

Multiple choice: HellaSwag (Zellers et al. 2019), MMLU (Hendrycks et al. 2020) and others in llm.c's format. All numbers are
little-endian:

    int32 (256)   magic number 20240522, version 1, examples, bytes of the longest one; the rest is 0
    then uint16, for every example
        65535, bytes of the example (these two numbers included), its number, label, completions
        length and tokens of the context
        length and tokens of each completion

An example is a row for each completion: the context, then the completion, of which the tokens of the completion are
predicted. With T + 1 = 8 positions, context a b c d and completion x y:

    inputs      a  b  c  d  x  0  0       what is behind the last input does not matter, for nothing looks ahead
    targets    -1 -1 -1  x  y -1 -1       -1: no loss

From the sum and the mean of these losses, in nats, the answer is the completion with

    acc         the smallest sum: the one that is most likely
    acc_norm    the smallest mean: long completions are not at a disadvantage. llm.c prints this one for HellaSwag. EleutherAI's
                harness, whose acc_norm is in papers, divides by the completion's bytes, not its tokens, so its numbers differ in
                the second or third digit

Of equal ones the first is the answer. A loss that is not a number answers nothing, so the example counts as wrong.
What is longer than T + 1 loses the begin of its context, as in that harness; a completion that has more than T tokens, and so
nothing before it, is refused.

Perplexity: e to the mean loss of a token, over all tokens of a stream (any format of dataloader/token_files.h) but the first. Row w has
the inputs [w T, w T + T): windows that do not overlap, so a token is predicted from those before it in its own window, 1 to T of
them. (Windows that overlap give each token more to look at and a smaller perplexity, for more work.) The last row
may be shorter. Bits per byte: the sum of the losses / ln 2 / bytes of the text that is predicted, the only number that can be compared
between vocabularies. Special tokens stand for no byte, but their losses count.

    evaluations_open     finds and checks the files; each element of the list is an evaluation (of choices, each file)
    evaluation_fit       what the model has to do with it: T and V
    evaluation_row       inputs and targets of a row; evaluation_positions: and where documents begin, with --documents
    evaluation_scores    from the sums of the rows' losses
*/
#ifndef EVAL_LOADER_H
#define EVAL_LOADER_H

#include "../dataloader.h"
#include "tokenizer.h"
#include <math.h>

enum { CHOICE_MAGIC = 20240522, CHOICE_VERSION = 1, CHOICE_BEGIN = 65535 };

// An example of a file of multiple choice.
typedef struct {
    const uint16_t* context; // its length, then its tokens; behind it those of each completion
    int64_t first;           // row of its first completion
    int label, completions;
} Example;

typedef struct {
    char* path;
    int64_t rows;
    int T;
    double* sums; // (rows): of the losses; whoever runs the model fills it
    // Multiple choice: example is not NULL
    MappedFile map;
    Example* example;
    int64_t examples, cut; // cut: those with a completion before which the context was too long
    // Perplexity
    TokenFiles stream;
    int64_t bytes; // of the text that is predicted; 0: not known
} Evaluation;

typedef struct {
    Evaluation* item;
    int count;
} Evaluations;

static inline bool is_choice(const Evaluation* e) { return e->example != NULL; }

static inline void evaluations_close(Evaluations* list) {
    for (int i = 0; i < list->count; i++) {
        Evaluation* e = &list->item[i];
        free(e->path);
        free(e->sums);
        free(e->example);
        file_unmap(&e->map);
        tokens_close(&e->stream);
    }
    free(list->item);
    memset(list, 0, sizeof *list);
}

// ----------------------------------------------------------------------------------------------------------------
// Multiple choice

static inline bool choice_recognise(const unsigned char* data, size_t size) {
    return size >= 4 && shard_header_word(data, 0) == CHOICE_MAGIC;
}

// Reads the example of `size` numbers, all that is left of the file, at `at`; returns how many of them are its own, 0 and *why if
// it is damaged.
static inline int64_t example_read(Example* example, const uint16_t* at, int64_t size, int64_t number,
                                   const char** why) {
    *why = "does not begin where the one before it ends";
    if (size < 6 || at[0] != CHOICE_BEGIN) return 0;
    const int64_t length = at[1] / 2;
    *why = "has a length that is not its own";
    if (at[1] % 2 || length < 6 || length > size) return 0;
    *why = "has another number";
    if (at[2] != (uint16_t)number) return 0;
    example->label = at[3], example->completions = at[4], example->context = at + 5;
    *why = "has a label that is none of its completions";
    if (example->label >= example->completions) return 0;
    int64_t i = 5;
    for (int part = 0; part <= example->completions; part++) { // the context, then completions
        *why = part ? "ends within a completion" : "ends within its context";
        if (i >= length || at[i] > length - i - 1) return 0;
        *why = part ? "has a completion without tokens" : "has a context without tokens";
        if (at[i] == 0) return 0;
        i += 1 + at[i];
    }
    *why = "has more behind its completions";
    return i == length ? length : 0;
}

// Reads and checks all examples of a mapped file.
static inline bool choice_read(Evaluation* e, Error* error) {
    const unsigned char* data = e->map.data;
    const size_t size = e->map.size;
    if (size < shard_header_bytes)
        return fail(error, "%s: a multiple-choice file that ends within its header, %zu bytes of %zu; make it again",
                    e->path, size, shard_header_bytes);
    const int32_t version = shard_header_word(data, 1);
    const int64_t count = shard_header_word(data, 2), numbers = (int64_t)(size - shard_header_bytes) / 2;
    if (version != CHOICE_VERSION)
        return fail(error, "%s: multiple choice of version %d, this program reads version %d", e->path, version,
                    CHOICE_VERSION);
    if (count < 1 || count > numbers / 8) // an example has 8 numbers at least
        return fail(error, "%s: the header says %lld examples, but the file has %zu bytes; make it again", e->path,
                    (long long)count, size);
    const uint16_t* at = (const uint16_t*)(const void*)(data + shard_header_bytes);
    const uint16_t* end = at + numbers;
    e->example = (Example*)checked_calloc((size_t)count, sizeof(Example), "the examples of an evaluation");
    for (e->examples = 0; e->examples < count; e->examples++) {
        Example* example = &e->example[e->examples];
        const char* why;
        const int64_t length = example_read(example, at, end - at, e->examples, &why);
        if (!length)
            return fail(error, "%s: example %lld %s; make the file again", e->path, (long long)e->examples, why);
        example->first = e->rows;
        e->rows += example->completions;
        at += length;
    }
    if (at != end || size % 2)
        return fail(error, "%s: the header says %lld examples, but there is more behind them; make it again", e->path,
                    (long long)count);
    return true;
}

// The example that a row belongs to: the last that does not begin after it.
static inline const Example* example_of_row(const Evaluation* e, int64_t row) {
    int64_t low = 0, high = e->examples;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (e->example[middle].first <= row)
            low = middle;
        else
            high = middle;
    }
    return &e->example[low];
}

// Completion c of an example: its length, then its tokens.
static inline const uint16_t* example_completion(const Example* example, int c) {
    const uint16_t* at = example->context + 1 + example->context[0];
    for (int i = 0; i < c; i++) at += 1 + at[0];
    return at;
}

// A row of multiple choice, see the top.
static inline void choice_row(int32_t* inputs, int32_t* targets, const Evaluation* e, int64_t row) {
    const Example* example = example_of_row(e, row);
    const uint16_t *context = example->context + 1,
                   *completion = example_completion(example, (int)(row - example->first));
    const int64_t before = context[-1], all = before + completion[0], T = e->T;
    const int64_t skipped = max_i64(0, all - (T + 1));
    for (int64_t i = 0; i < T; i++) inputs[i] = 0, targets[i] = -1;
    for (int64_t i = skipped; i < all; i++) {
        const int32_t token = i < before ? context[i] : completion[1 + i - before];
        if (i + 1 < all) inputs[i - skipped] = token;
        if (i >= before) targets[i - skipped - 1] = token;
    }
}

// Whether all tokens are below V, and all completions have a place in T; counts the contexts that are cut.
static inline bool choice_fit(Evaluation* e, int V, Error* error) {
    e->cut = 0;
    for (int64_t n = 0; n < e->examples; n++) {
        const Example* example = &e->example[n];
        const uint16_t* part = example->context;
        int longest = 0;
        for (int c = -1; c < example->completions; c++, part += 1 + part[0]) { // -1: the context
            for (int i = 1; i <= part[0]; i++) {
                if (part[i] >= V)
                    return fail(error,
                                "%s: example %lld has the token %d, the model has a vocabulary of %d: make the file "
                                "with the model's tokenizer (build/make_choices)",
                                e->path, (long long)n, part[i], V);
            }
            if (c >= 0) longest = part[0] > longest ? part[0] : longest;
        }
        if (longest > e->T)
            return fail(error, "%s: example %lld has a completion of %d tokens, more than --seq %d has room for",
                        e->path, (long long)n, longest, e->T);
        e->cut += example->context[0] + longest > e->T + 1;
    }
    return true;
}

// ----------------------------------------------------------------------------------------------------------------
// Perplexity

static inline int64_t stream_row_tokens(const Evaluation* e, int64_t row) {
    return min_i64(e->T, e->stream.tokens - 1 - row * e->T);
}

static inline bool stream_row(int32_t* inputs, int32_t* targets, const Evaluation* e, int V, int64_t row,
                              Error* error) {
    const int64_t n = stream_row_tokens(e, row), begin = row * e->T;
    for (int64_t i = n; i < e->T; i++) inputs[i] = 0, targets[i] = -1;
    return tokens_read(inputs, &e->stream, begin, n, V, error) &&
           tokens_read(targets, &e->stream, begin + 1, n, V, error);
}

// Bytes of the text behind the first token; 0: not known. tokenizer: of the model's tokens, vocab 0 where there is none.
static inline int64_t stream_bytes(const TokenFiles* stream, const Tokenizer* tokenizer) {
    if (stream->format == TOKENS_TEXT) return stream->tokens - 1;
    if (!tokenizer->vocab) return 0;
    uint32_t* bytes = (uint32_t*)checked_malloc((size_t)tokenizer->vocab * sizeof *bytes, "the bytes of tokens");
    for (int i = 0; i < tokenizer->vocab; i++) bytes[i] = token_bytes(tokenizer, (uint32_t)i);
    for (int i = 0; i < tokenizer->added_count; i++)
        if (tokenizer->added[i].special) bytes[tokenizer->added[i].token] = 0;
    int64_t sum = 0;
    for (int f = 0; f < stream->files; f++) {
        const TokenFile* file = &stream->file[f];
        for (int64_t i = f == 0; i < file->count; i++) {
            const uint32_t token = token_at(file->data, file->type, i);
            if (token < (uint32_t)tokenizer->vocab) sum += bytes[token];
        }
    }
    free(bytes);
    return sum;
}

// ----------------------------------------------------------------------------------------------------------------
// Evaluations

static inline Evaluation* evaluations_append(Evaluations* list, const char* path) {
    const size_t size = ((size_t)list->count + 1) * sizeof(Evaluation);
    list->item = (Evaluation*)realloc(list->item, size);
    char* copy = strdup(path);
    if (!list->item || !copy) die("out of memory for the list of evaluations");
    Evaluation* e = &list->item[list->count++];
    memset(e, 0, sizeof *e);
    e->path = copy;
    return e;
}

// A file of multiple choice; *is: whether it is one.
static inline bool evaluations_open_choice(Evaluations* list, const char* path, bool* is, Error* error) {
    MappedFile map;
    struct stat st; // what cannot be mapped is told by dataloader/token_files.h
    Error unused;
    *is = stat(path, &st) == 0 && S_ISREG(st.st_mode) && file_map(&map, path, &unused);
    if (!*is) return true;
    *is = choice_recognise(map.data, map.size);
    if (!*is) {
        file_unmap(&map);
        return true;
    }
    Evaluation* e = evaluations_append(list, path);
    e->map = map;
    return choice_read(e, error);
}

// What one name or pattern of the list stands for: files of multiple choice, or one stream.
static inline bool evaluations_open_pattern(Evaluations* list, const char* pattern, Error* error) {
    PathList files = {NULL, 0};
    bool ok = path_list_append_glob(&files, pattern, error), is = true;
    int choices = 0;
    for (int i = 0; i < files.count && ok && is; i++) {
        ok = evaluations_open_choice(list, files.path[i], &is, error);
        choices += is;
        if (ok && choices > 0 && !is)
            ok = fail(error, "\"%s\": %s is multiple choice, %s is not: name them apart", pattern, files.path[0],
                      files.path[i]);
    }
    if (ok && choices == 0) {
        Evaluation* e = evaluations_append(list, pattern);
        ok = tokens_open_list(&e->stream, (const char* const*)files.path, files.count, error);
        if (ok && e->stream.tokens < 2)
            ok = fail(error, "%s: one token, of which none is left to predict", files.path[0]);
    }
    path_list_free(&files);
    return ok;
}

// Opens all that a list between commas names. False, *error filled, *list closed, if something cannot be read.
static inline bool evaluations_open(Evaluations* list, const char* names, Error* error) {
    PathList patterns = names_between_commas(names);
    bool ok = true;
    memset(list, 0, sizeof *list);
    for (int i = 0; i < patterns.count && ok; i++)
        ok = *patterns.path[i] ? evaluations_open_pattern(list, patterns.path[i], error)
                               : fail(error, "\"%s\": an empty name in the list of files", names);
    path_list_free(&patterns);
    if (!ok) evaluations_close(list);
    return ok;
}

// Whether the tokens of a stream mean what the model's do: those of the files that it learns from, where there are any, or of
// its tokenizer. Those of multiple choice do not say what they are.
static inline bool evaluation_agrees(const Evaluation* e, const Sources* learned, const Tokenizer* tokenizer, int V,
                                     Error* error) {
    const TokenFormatFacts* is = &token_formats[e->stream.format];
    if (is_choice(e)) return true;
    for (int i = 0; i < learned->count; i++) {
        const TokenFiles* files = &learned->source[i].files;
        if (!formats_agree(files->format, e->stream.format))
            return fail(error, "%s holds %s, but the model learns from %s: their tokens do not mean the same", e->path,
                        is->name, token_formats[files->format].name);
    }
    const bool bytes = tokenizer->vocab ? tokenizer->split == SPLIT_BYTES : V == 256;
    if (learned->count == 0 && e->stream.format == TOKENS_TEXT && !bytes)
        return fail(error,
                    "%s is a text, and the %d tokens of the model are not bytes: make shards of it with build/tokenize",
                    e->path, V);
    return true;
}

// The rows for a model of sequences of T tokens out of V; tokenizer: of its tokens. A stream's tokens are checked at its begin
// here, and all of them when they are read.
static inline bool evaluation_fit(Evaluation* e, int T, int V, const Tokenizer* tokenizer, Error* error) {
    e->T = T;
    if (is_choice(e)) {
        if (!choice_fit(e, V, error)) return false;
    } else {
        int32_t piece[1024];
        const int64_t looked = min_i64(e->stream.tokens, 1 << 20), size = sizeof piece / sizeof piece[0];
        for (int64_t i = 0; i < looked; i += size)
            if (!tokens_read(piece, &e->stream, i, min_i64(size, looked - i), V, error)) return false;
        e->rows = (e->stream.tokens - 1 + T - 1) / T;
        e->bytes = stream_bytes(&e->stream, tokenizer);
    }
    free(e->sums);
    e->sums = (double*)checked_calloc((size_t)e->rows, sizeof(double), "the losses of an evaluation");
    return true;
}

// Row 0 <= row < rows: inputs (T) and targets (T). False, *error filled, where a token is not below V.
static inline bool evaluation_row(int32_t* inputs, int32_t* targets, const Evaluation* e, int V, int64_t row,
                                  Error* error) {
    if (!is_choice(e)) return stream_row(inputs, targets, e, V, row, error);
    choice_row(inputs, targets, e, row);
    return true;
}

// positions (T) of its inputs, each in its document (dataloader/token_files.h): a row of multiple choice is one.
static inline void evaluation_positions(int32_t* positions, const int32_t* inputs, const Evaluation* e, int64_t row) {
    for (int i = 0; i < e->T; i++) positions[i] = i;
    if (!is_choice(e)) tokens_positions(positions, &e->stream, inputs, row * e->T, stream_row_tokens(e, row));
}

// A number that differs where files differ.
static inline uint64_t evaluation_checksum(const Evaluation* e) {
    if (!is_choice(e)) return tokens_checksum(&e->stream);
    uint64_t h = 14695981039346656037ull;
    for (size_t i = 0; i < e->map.size; i++) h = (h ^ e->map.data[i]) * 1099511628211ull;
    return h;
}

// ----------------------------------------------------------------------------------------------------------------
// Scores

typedef struct {
    int64_t n;                          // examples, or tokens that were predicted
    double acc, acc_norm;               // of multiple choice; else NaN
    double loss, perplexity, byte_bits; // of a stream, else NaN; byte_bits: NaN too where bytes are not known
} Scores;

// The completion with the smallest loss, of its tokens together or (mean) each; -1 if one is not a number.
static inline int example_answer(const Evaluation* e, const Example* example, bool mean) {
    const uint16_t* completion = example_completion(example, 0);
    int answer = -1;
    double least = 0;
    for (int c = 0; c < example->completions; c++, completion += 1 + completion[0]) {
        const double loss = e->sums[example->first + c] / (mean ? completion[0] : 1);
        if (isnan(loss)) return -1;
        if (answer < 0 || loss < least) least = loss, answer = c;
    }
    return answer;
}

static inline Scores evaluation_scores(const Evaluation* e) {
    const double nan = (double)NAN;
    Scores s = {e->examples, nan, nan, nan, nan, nan};
    if (is_choice(e)) {
        int64_t right = 0, right_norm = 0;
        for (int64_t i = 0; i < e->examples; i++) {
            right += example_answer(e, &e->example[i], false) == e->example[i].label;
            right_norm += example_answer(e, &e->example[i], true) == e->example[i].label;
        }
        s.acc = (double)right / (double)s.n, s.acc_norm = (double)right_norm / (double)s.n;
        return s;
    }
    double sum = 0;
    for (int64_t i = 0; i < e->rows; i++) sum += e->sums[i];
    s.n = e->stream.tokens - 1;
    s.loss = sum / (double)s.n, s.perplexity = exp(s.loss);
    if (e->bytes > 0) s.byte_bits = sum / 0.69314718055994531 / (double)e->bytes;
    return s;
}

// One line for people: "a.bin: multiple choice, 10042 examples with 40168 completions, 3 contexts cut".
static inline void evaluation_describe(char* text, size_t size, const Evaluation* e) {
    if (is_choice(e)) {
        snprintf(text, size, "%s: multiple choice, %lld examples with %lld completions", e->path,
                 (long long)e->examples, (long long)e->rows);
        if (e->cut) append_text(text, size, ", of which %lld lose the begin of their context", (long long)e->cut);
    } else {
        tokens_describe(text, size, &e->stream);
        append_text(text, size, " in %lld rows", (long long)e->rows);
    }
}

#endif
