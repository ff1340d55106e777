/*
dataloader/eval_loader.h: evaluations besides the validation loss: multiple choice, and the perplexity of texts. This
file has the formats, the rows of tokens for the model, and the scores from their losses; trainer/ runs the model. It
knows nothing of ranks.

    evaluations_open     finds and checks the files; each element of the list (of multiple choice, each file) is an
                         evaluation
    evaluation_fit       fits it to the model: T and V
    evaluation_row       inputs and targets of a row; evaluation_positions: and positions in documents, with
                         --document-mask
    evaluation_scores    the scores, from the sums of the rows' losses

Theory. Multiple choice: HellaSwag (Zellers et al. 2019), MMLU (Hendrycks et al. 2020) and others in llm.c's format. All
numbers are little-endian:

    int32 (256)   magic number 20240522, version 1, examples, bytes of the longest one; the rest is 0
    then uint16, for every example
        65535, bytes of the example (these two numbers included), its number, label, completions
        length and tokens of the context
        length and tokens of each completion

An example is a row for each completion: the context, then the completion, whose tokens are predicted. With T + 1 = 8
positions, context a b c d and completion x y:

    inputs      a  b  c  d  x  0  0       inputs after the last one do not matter, as attention is causal
    targets    -1 -1 -1  x  y -1 -1       -1: no loss

From the sum and the mean of these losses, in nats, the answer is the completion with

    acc         the smallest sum: the most likely completion
    acc_norm    the smallest mean: long completions are not at a disadvantage. llm.c prints this one for HellaSwag.
                EleutherAI's harness, whose acc_norm is in papers, divides by the completion's bytes, not its tokens, so
                its numbers differ in the second or third digit

Of equal losses the first is the answer. If a loss is NaN the example counts as wrong. A row longer than T + 1 is cut at
the beginning of its context, as in that harness; a completion of more than T tokens, which would have no context, is
refused.

Perplexity: e to the mean loss of a token, over all tokens of a stream (any format of dataloader/token_format.h) but the
first. Row w has the inputs [w T, w T + T): windows do not overlap, so a token is predicted from the 1 to T tokens
before it in its window. (Overlapping windows give each token more context and a smaller perplexity, for more work.) The
last row may be shorter. Bits per byte: the sum of the losses / ln 2 / bytes of the predicted text, the only number that
can be compared between vocabularies. Special tokens have no bytes, but their losses count.
*/
#pragma once

#include "../dataloader.h"
#include "text.h"
#include <math.h>

enum { CHOICE_MAGIC = 20240522, CHOICE_VERSION = 1, CHOICE_BEGIN = 65535 };

// An example of a file of multiple choice.
typedef struct {
    const uint16_t* context; // its length, then its tokens; then the same for each completion
    int64_t first;           // row of its first completion
    int label, completions;
} Example;

typedef struct {
    char* path;
    int64_t rows;
    int T;
    double* sums; // (rows): sums of the losses; the caller fills it
    // Multiple choice, if example is not NULL
    MappedFile map;
    Example* example;
    int64_t examples, cut; // cut: examples whose context was too long for one of their completions
    // Perplexity
    TokenFiles stream;
    int64_t bytes; // of the predicted text; 0: not known
} Evaluation;

typedef struct {
    Evaluation* item;
    int count;
} Evaluations;

static inline bool is_choice(const Evaluation* eval) { return eval->example != NULL; }

static inline void evaluations_close(Evaluations* list) {
    for (int i = 0; i < list->count; i++) {
        Evaluation* eval = &list->item[i];
        free(eval->path);
        free(eval->sums);
        free(eval->example);
        file_unmap(&eval->map);
        tokens_close(&eval->stream);
    }
    free(list->item);
    memset(list, 0, sizeof *list);
}

// ---- Multiple choice --------------------------------------------------------------------------------------------

static inline bool choice_recognise(const unsigned char* data, size_t size) {
    return size >= 4 && shard_header_word(data, 0) == CHOICE_MAGIC;
}

// Reads the example at `at`, where `size` numbers of the file are left. Returns how many belong to the example; 0, and
// *why, if it is damaged.
static inline int64_t example_read(Example* example, const uint16_t* at, int64_t size, int64_t number,
                                   const char** why) {
    *why = "does not begin where the one before it ends";
    if (size < 6 || at[0] != CHOICE_BEGIN) return 0;
    const int64_t length = at[1] / 2;
    *why = "has a length that is not its own";
    if (at[1] % 2 || length < 6 || length > size) return 0;
    *why = "has another number";
    if (at[2] != (uint16_t)number) return 0;
    example->label = at[3];
    example->completions = at[4];
    example->context = at + 5;
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
static inline bool choice_read(Evaluation* eval, Error* error) {
    const unsigned char* data = eval->map.data;
    const size_t size = eval->map.size;
    if (size < shard_header_bytes)
        return fail(error, "%s: a multiple-choice file that ends within its header, %zu bytes of %zu; make it again",
                    eval->path, size, shard_header_bytes);
    const int32_t version = shard_header_word(data, 1);
    const int64_t count = shard_header_word(data, 2), numbers = (int64_t)(size - shard_header_bytes) / 2;
    if (version != CHOICE_VERSION)
        return fail(error, "%s: multiple choice of version %d, this program reads version %d", eval->path, version,
                    CHOICE_VERSION);
    if (count < 1 || count > numbers / 8) // an example has 8 numbers at least
        return fail(error, "%s: the header says %lld examples, but the file has %zu bytes; make it again", eval->path,
                    (long long)count, size);
    const uint16_t* at = (const uint16_t*)(const void*)(data + shard_header_bytes);
    const uint16_t* end = at + numbers;
    eval->example = (Example*)checked_calloc((size_t)count, sizeof(Example), "the examples of an evaluation");
    for (eval->examples = 0; eval->examples < count; eval->examples++) {
        Example* example = &eval->example[eval->examples];
        const char* why;
        const int64_t length = example_read(example, at, end - at, eval->examples, &why);
        if (!length)
            return fail(error, "%s: example %lld %s; make the file again", eval->path, (long long)eval->examples, why);
        example->first = eval->rows;
        eval->rows += example->completions;
        at += length;
    }
    if (at != end || size % 2)
        return fail(error, "%s: the header has %lld examples, but data follow them; make it again", eval->path,
                    (long long)count);
    return true;
}

// The example that a row belongs to: the last one that does not begin after it.
static inline const Example* example_of_row(const Evaluation* eval, int64_t row) {
    int64_t low = 0, high = eval->examples;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (eval->example[middle].first <= row)
            low = middle;
        else
            high = middle;
    }
    return &eval->example[low];
}

// Completion c of an example: its length, then its tokens.
static inline const uint16_t* example_completion(const Example* example, int c) {
    const uint16_t* at = example->context + 1 + example->context[0];
    for (int i = 0; i < c; i++) at += 1 + at[0];
    return at;
}

// Sets a row of multiple choice, see the file's comment.
static inline void choice_row(int32_t* inputs, int32_t* targets, const Evaluation* eval, int64_t row) {
    const Example* example = example_of_row(eval, row);
    const uint16_t *context = example->context + 1,
                   *completion = example_completion(example, (int)(row - example->first));
    const int64_t before = context[-1], all = before + completion[0], T = eval->T;
    const int64_t skipped = max_i64(0, all - (T + 1));
    for (int64_t i = 0; i < T; i++) {
        inputs[i] = 0;
        targets[i] = -1;
    }
    for (int64_t i = skipped; i < all; i++) {
        const int32_t token = i < before ? context[i] : completion[1 + i - before];
        if (i + 1 < all) inputs[i - skipped] = token;
        if (i >= before) targets[i - skipped - 1] = token;
    }
}

// Whether all tokens are below V and all completions fit into T; counts the examples whose context is cut.
static inline bool choice_fit(Evaluation* eval, int V, Error* error) {
    eval->cut = 0;
    for (int64_t n = 0; n < eval->examples; n++) {
        const Example* example = &eval->example[n];
        const uint16_t* part = example->context;
        int longest = 0;
        for (int c = -1; c < example->completions; c++, part += 1 + part[0]) { // -1: the context
            for (int i = 1; i <= part[0]; i++) {
                if (part[i] >= V)
                    return fail(error,
                                "%s: example %lld has the token %d, the model has a vocabulary of %d: make the file "
                                "with the model's tokenizer",
                                eval->path, (long long)n, part[i], V);
            }
            if (c >= 0) longest = part[0] > longest ? part[0] : longest;
        }
        if (longest > eval->T)
            return fail(error, "%s: example %lld has a completion of %d tokens, more than --seq %d has room for",
                        eval->path, (long long)n, longest, eval->T);
        eval->cut += example->context[0] + longest > eval->T + 1;
    }
    return true;
}

// ---- Perplexity -------------------------------------------------------------------------------------------------

static inline int64_t stream_row_tokens(const Evaluation* eval, int64_t row) {
    return min_i64(eval->T, eval->stream.tokens - 1 - row * eval->T);
}

static inline bool stream_row(int32_t* inputs, int32_t* targets, const Evaluation* eval, int V, int64_t row,
                              Error* error) {
    const int64_t n = stream_row_tokens(eval, row), begin = row * eval->T;
    for (int64_t i = n; i < eval->T; i++) {
        inputs[i] = 0;
        targets[i] = -1;
    }
    return tokens_read(inputs, &eval->stream, begin, n, V, error) &&
           tokens_read(targets, &eval->stream, begin + 1, n, V, error);
}

// Bytes of the text after the first token; 0: not known. tokenizer: the model's; vocab 0: there is none.
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

// ---- Evaluations ------------------------------------------------------------------------------------------------

static inline Evaluation* evaluations_append(Evaluations* list, const char* path) {
    list->item = (Evaluation*)checked_realloc(list->item, (size_t)list->count + 1, sizeof(Evaluation),
                                              "the list of evaluations");
    Evaluation* eval = &list->item[list->count++];
    memset(eval, 0, sizeof *eval);
    eval->path = checked_strdup(path, "the list of evaluations");
    return eval;
}

// Opens a file of multiple choice; *is: whether the file is one.
static inline bool evaluations_open_choice(Evaluations* list, const char* path, bool* is, Error* error) {
    MappedFile map;
    struct stat st; // if the file cannot be mapped, tokens_open_list reports it
    Error unused;
    *is = stat(path, &st) == 0 && S_ISREG(st.st_mode) && file_map(&map, path, &unused);
    if (!*is) return true;
    *is = choice_recognise(map.data, map.size);
    if (!*is) {
        file_unmap(&map);
        return true;
    }
    Evaluation* eval = evaluations_append(list, path);
    eval->map = map;
    return choice_read(eval, error);
}

// Opens the files of one name or pattern of the list: files of multiple choice, or one stream.
static inline bool evaluations_open_pattern(Evaluations* list, const char* pattern, Error* error) {
    PathList files = {NULL, 0, 0};
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
        Evaluation* eval = evaluations_append(list, pattern);
        ok = tokens_open_list(&eval->stream, (const char* const*)files.path, files.count, error);
        if (ok && eval->stream.tokens < 2)
            ok = fail(error, "%s: one token, of which none is left to predict", files.path[0]);
    }
    path_list_free(&files);
    return ok;
}

// Opens the evaluations of a comma-separated list. False, *error filled, *list closed, if a file cannot be read.
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

// Tokenizes a stream that is text with the model's tokenizer. False, *error filled, if a stream does not have the
// vocabulary of the training files (learned; there may be none). Multiple choice does not name its vocabulary.
static inline bool evaluation_encode(Evaluation* eval, const Sources* learned, const Tokenizer* tokenizer,
                                     Error* error) {
    bool agrees = true;
    if (is_choice(eval)) return true;
    for (int i = 0; i < learned->count && agrees; i++)
        agrees = streams_agree(&eval->stream, &learned->source[i].files, tokenizer->split == SPLIT_BYTES, error);
    return agrees && text_encode(&eval->stream, tokenizer, error);
}

// Fits the rows to a model of sequences of T tokens and a vocabulary of V; tokenizer: the model's. The first tokens of
// a stream are checked here, and all of them when they are read.
static inline bool evaluation_fit(Evaluation* eval, int T, int V, const Tokenizer* tokenizer, Error* error) {
    eval->T = T;
    if (is_choice(eval)) {
        if (!choice_fit(eval, V, error)) return false;
    } else {
        int32_t piece[1024];
        const int64_t looked = min_i64(eval->stream.tokens, 1 << 20), size = sizeof piece / sizeof piece[0];
        for (int64_t i = 0; i < looked; i += size)
            if (!tokens_read(piece, &eval->stream, i, min_i64(size, looked - i), V, error)) return false;
        eval->rows = (eval->stream.tokens - 1 + T - 1) / T;
        eval->bytes = stream_bytes(&eval->stream, tokenizer);
    }
    free(eval->sums);
    eval->sums = (double*)checked_calloc((size_t)eval->rows, sizeof(double), "the losses of an evaluation");
    return true;
}

// Sets inputs (T) and targets (T) of row 0 <= row < rows. False, *error filled, if a token is not below V.
static inline bool evaluation_row(int32_t* inputs, int32_t* targets, const Evaluation* eval, int V, int64_t row,
                                  Error* error) {
    if (!is_choice(eval)) return stream_row(inputs, targets, eval, V, row, error);
    choice_row(inputs, targets, eval, row);
    return true;
}

// Sets positions (T) of the row's inputs, each in its document (tokens_positions); a row of multiple choice is one
// document.
static inline void evaluation_positions(int32_t* positions, const int32_t* inputs, const Evaluation* eval,
                                        int64_t row) {
    for (int i = 0; i < eval->T; i++) positions[i] = i;
    if (!is_choice(eval))
        tokens_positions(positions, &eval->stream, inputs, row * eval->T, stream_row_tokens(eval, row));
}

// A hash of the file.
static inline uint64_t evaluation_checksum(const Evaluation* eval) {
    return is_choice(eval) ? hash_bytes(eval->map.data, eval->map.size) : tokens_checksum(&eval->stream);
}

// ---- Scores -----------------------------------------------------------------------------------------------------

typedef struct {
    int64_t n;                          // examples, or predicted tokens
    double acc, acc_norm;               // multiple choice only; else NaN
    double loss, perplexity, byte_bits; // a stream only, else NaN; byte_bits: also NaN if bytes are not known
} Scores;

// The completion with the smallest sum of losses, or (mean) mean loss; -1 if a loss is NaN.
static inline int example_answer(const Evaluation* eval, const Example* example, bool mean) {
    const uint16_t* completion = example_completion(example, 0);
    int answer = -1;
    double least = 0;
    for (int c = 0; c < example->completions; c++, completion += 1 + completion[0]) {
        const double loss = eval->sums[example->first + c] / (mean ? completion[0] : 1);
        if (isnan(loss)) return -1;
        if (answer < 0 || loss < least) {
            least = loss;
            answer = c;
        }
    }
    return answer;
}

static inline Scores evaluation_scores(const Evaluation* eval) {
    const double nan = (double)NAN;
    Scores scores = {eval->examples, nan, nan, nan, nan, nan};
    if (is_choice(eval)) {
        int64_t right = 0, right_norm = 0;
        for (int64_t i = 0; i < eval->examples; i++) {
            right += example_answer(eval, &eval->example[i], false) == eval->example[i].label;
            right_norm += example_answer(eval, &eval->example[i], true) == eval->example[i].label;
        }
        scores.acc = (double)right / (double)scores.n;
        scores.acc_norm = (double)right_norm / (double)scores.n;
        return scores;
    }
    double sum = 0;
    for (int64_t i = 0; i < eval->rows; i++) sum += eval->sums[i];
    scores.n = eval->stream.tokens - 1;
    scores.loss = sum / (double)scores.n;
    scores.perplexity = exp(scores.loss);
    if (eval->bytes > 0) scores.byte_bits = sum / 0.69314718055994531 / (double)eval->bytes;
    return scores;
}

// Describes an evaluation in a line: "a.bin: multiple choice, 10042 examples with 40168 completions, 3 contexts cut".
static inline void evaluation_describe(char* text, size_t size, const Evaluation* eval) {
    if (is_choice(eval)) {
        snprintf(text, size, "%s: multiple choice, %lld examples with %lld completions", eval->path,
                 (long long)eval->examples, (long long)eval->rows);
        if (eval->cut)
            append_text(text, size, ", of which %lld lose the beginning of their context", (long long)eval->cut);
    } else {
        tokens_describe(text, size, &eval->stream);
        append_text(text, size, " in %lld rows", (long long)eval->rows);
    }
}
