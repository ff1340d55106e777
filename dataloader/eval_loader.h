/*
dataloader/eval_loader.h: evaluations besides the validation loss: multiple choice, and the perplexity of texts. This
file has the formats, the rows of tokens for the model, and the scores from their losses; trainer/ runs the model. It
knows nothing of ranks.

    evaluations_open     finds and checks the files; each element of the list is an evaluation
    evaluation_fit       fits it to the model: T and V
    evaluation_row       inputs and targets of a row
    evaluation_scores    the scores, from the sums of the rows' losses

Theory. Multiple choice: HellaSwag (Zellers et al. 2019), as llm.c writes it. All numbers are little-endian:

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
    acc_norm    the smallest mean: long completions are not at a disadvantage. llm.c prints this one for HellaSwag;
                EleutherAI's harness divides by bytes, not by tokens

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

// A row of multiple choice. A context or completion is its length, then its tokens.
typedef struct {
    const uint16_t *context, *completion;
    int completions; // of the example: one row after the other
    bool right;
} ChoiceRow;

typedef struct {
    char* path;
    int64_t rows;
    int T;
    double* sums; // (rows): sums of the losses; the caller fills it
    // Multiple choice, if choice is not NULL
    MappedFile map;
    ChoiceRow* choice; // (rows)
    int room, examples;
    int64_t cut; // rows whose context is too long
    // Perplexity
    TokenFiles stream;
    int64_t bytes; // of the predicted text; 0: not known
} Evaluation;

typedef struct {
    Evaluation* item;
    int count;
} Evaluations;

static inline bool is_choice(const Evaluation* eval) { return eval->choice != NULL; }

static inline void evaluations_close(Evaluations* list) {
    for (int i = 0; i < list->count; i++) {
        Evaluation* eval = &list->item[i];
        free(eval->path);
        free(eval->sums);
        free(eval->choice);
        file_unmap(&eval->map);
        tokens_close(&eval->stream);
    }
    free(list->item);
    memset(list, 0, sizeof *list);
}

// ---- Multiple choice --------------------------------------------------------------------------------------------

// Whether this is the name of such a file. If it cannot be read, tokens_open_list reports that.
static inline bool is_choice_file(const char* path) {
    MappedFile map;
    Error unused;
    if (!file_map(&map, path, &unused)) return false;
    const bool is = map.size >= shard_header_bytes && shard_header_word(map.data, 0) == CHOICE_MAGIC;
    file_unmap(&map);
    return is;
}

// Reads the next example, from *at to before `end`, as rows. False: it is damaged.
static inline bool choice_read(Evaluation* eval, const uint16_t** at, const uint16_t* end) {
    const uint16_t *head = *at, *context = head + 5, *part = context;
    if (end - head < 6 || head[0] != CHOICE_BEGIN || head[1] % 2 || head[1] / 2 > end - head) return false;
    const int label = head[3], completions = head[4];
    if (head[2] != (uint16_t)eval->examples || label >= completions) return false;
    *at = head + head[1] / 2;
    for (int i = -1; i < completions; i++, part += 1 + *part) { // -1: the context
        if (part >= *at || *part == 0 || *part >= *at - part) return false;
        if (i < 0) continue;
        if (eval->rows == eval->room)
            eval->choice =
                (ChoiceRow*)checked_grow(eval->choice, &eval->room, 1024, sizeof(ChoiceRow), "multiple choice");
        const ChoiceRow choice = {context, part, completions, i == label};
        eval->choice[eval->rows++] = choice;
    }
    return part == *at;
}

// Reads and checks all examples of the mapped file.
static inline bool choices_read(Evaluation* eval, Error* error) {
    const unsigned char* data = eval->map.data;
    const int version = shard_header_word(data, 1), count = shard_header_word(data, 2);
    const uint16_t* at = (const uint16_t*)(const void*)(data + shard_header_bytes);
    const uint16_t* end = at + (eval->map.size - shard_header_bytes) / 2;
    if (version != CHOICE_VERSION)
        return fail(error, "%s: multiple choice of version %d, this program reads version %d", eval->path, version,
                    CHOICE_VERSION);
    for (; eval->examples < count; eval->examples++)
        if (!choice_read(eval, &at, end))
            return fail(error, "%s: example %d is damaged; make the file again", eval->path, eval->examples);
    return (count > 0 && at == end && eval->map.size % 2 == 0) ||
           fail(error, "%s: the header has %d examples, the file another number; make it again", eval->path, count);
}

// Sets the inputs and targets of a row that have a loss, or precede them.
static inline void choice_row(int32_t* inputs, int32_t* targets, const Evaluation* eval, int64_t row) {
    const uint16_t *context = eval->choice[row].context, *completion = eval->choice[row].completion;
    const int64_t before = context[0], all = before + completion[0], skipped = max_i64(0, all - (eval->T + 1));
    for (int64_t i = skipped; i < all; i++) {
        const int32_t token = i < before ? context[1 + i] : completion[1 + i - before];
        if (i + 1 < all) inputs[i - skipped] = token;
        if (i >= before) targets[i - skipped - 1] = token;
    }
}

static inline bool are_below(const uint16_t* part, int V) {
    for (int i = 1; i <= part[0]; i++)
        if (part[i] >= V) return false;
    return true;
}

// Whether all tokens are below V and all completions fit into T; counts the rows whose context is cut.
static inline bool choices_fit(Evaluation* eval, int V, Error* error) {
    eval->cut = 0;
    for (int64_t row = 0; row < eval->rows; row++) {
        const uint16_t *context = eval->choice[row].context, *completion = eval->choice[row].completion;
        if (!are_below(context, V) || !are_below(completion, V))
            return fail(
                error,
                "%s: a token of completion %lld or its context is not in the model's vocabulary of %d: make the "
                "file with the model's tokenizer",
                eval->path, (long long)row, V);
        if (completion[0] > eval->T)
            return fail(error, "%s: completion %lld has %d tokens, more than --seq %d has room for", eval->path,
                        (long long)row, completion[0], eval->T);
        eval->cut += context[0] + completion[0] > eval->T + 1;
    }
    return true;
}

// ---- Perplexity -------------------------------------------------------------------------------------------------

static inline int64_t stream_row_tokens(const Evaluation* eval, int64_t row) {
    return min_i64(eval->T, eval->stream.tokens - 1 - row * eval->T);
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

// Opens the files of a name or pattern: a file of multiple choice, or a stream.
static inline bool evaluation_open(Evaluation* eval, const char* pattern, Error* error) {
    PathList files = {NULL, 0, 0};
    bool ok = path_list_append_glob(&files, pattern, error);
    eval->path = checked_strdup(pattern, "the name of an evaluation");
    if (ok && files.count == 1 && is_choice_file(files.path[0])) {
        ok = file_map(&eval->map, files.path[0], error) && choices_read(eval, error);
    } else if (ok) {
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
    list->item = (Evaluation*)checked_calloc((size_t)patterns.count, sizeof(Evaluation), "the list of evaluations");
    for (list->count = 0; list->count < patterns.count && ok; list->count++)
        ok = evaluation_open(&list->item[list->count], patterns.path[list->count], error);
    path_list_free(&patterns);
    if (!ok) evaluations_close(list);
    return ok;
}

// Tokenizes a stream that is text with the model's tokenizer. False, *error filled, if a stream does not have the
// vocabulary of the training files (learned; there may be none). Multiple choice does not name its vocabulary.
static inline bool evaluation_encode(Evaluation* eval, const TokenFiles* learned, const Tokenizer* tokenizer,
                                     Error* error) {
    if (is_choice(eval)) return true;
    if (learned->files && !streams_agree(&eval->stream, learned, tokenizer->split == SPLIT_BYTES, error)) return false;
    return text_encode(&eval->stream, tokenizer, error);
}

// Fits the rows to a model of sequences of T tokens and a vocabulary of V; tokenizer: the model's. The first tokens of
// a stream are checked here, and all of them when they are read.
static inline bool evaluation_fit(Evaluation* eval, int T, int V, const Tokenizer* tokenizer, Error* error) {
    eval->T = T;
    if (is_choice(eval)) {
        if (!choices_fit(eval, V, error)) return false;
    } else {
        int32_t tokens[4096];
        if (!tokens_read(tokens, &eval->stream, 0, min_i64(eval->stream.tokens, 4096), V, error)) return false;
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
    for (int i = 0; i < eval->T; i++) {
        inputs[i] = 0;
        targets[i] = -1;
    }
    if (is_choice(eval)) {
        choice_row(inputs, targets, eval, row);
        return true;
    }
    const int64_t n = stream_row_tokens(eval, row), begin = row * eval->T;
    return tokens_read(inputs, &eval->stream, begin, n, V, error) &&
           tokens_read(targets, &eval->stream, begin + 1, n, V, error);
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

// Whether the right completion of an example, whose rows begin with `first`, has the smallest sum of losses, or (mean)
// mean loss.
static inline bool choice_is_right(const Evaluation* eval, int64_t first, bool mean) {
    const ChoiceRow* choice = &eval->choice[first];
    int answer = 0;
    double least = 0;
    for (int c = 0; c < choice->completions; c++) {
        const double loss = eval->sums[first + c] / (mean ? choice[c].completion[0] : 1);
        if (isnan(loss)) return false;
        if (c > 0 && loss >= least) continue;
        least = loss;
        answer = c;
    }
    return choice[answer].right;
}

static inline Scores evaluation_scores(const Evaluation* eval) {
    const double nan = (double)NAN;
    Scores scores = {eval->examples, nan, nan, nan, nan, nan};
    if (is_choice(eval)) {
        int64_t right = 0, right_norm = 0;
        for (int64_t first = 0; first < eval->rows; first += eval->choice[first].completions) {
            right += choice_is_right(eval, first, false);
            right_norm += choice_is_right(eval, first, true);
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

// Describes an evaluation in a line: "a.bin: multiple choice, 10042 examples with 40168 completions".
static inline void evaluation_describe(char* text, size_t size, const Evaluation* eval) {
    if (is_choice(eval)) {
        snprintf(text, size, "%s: multiple choice, %d examples with %lld completions", eval->path, eval->examples,
                 (long long)eval->rows);
        if (eval->cut)
            append_text(text, size, ", %lld of them without the beginning of their context", (long long)eval->cut);
    } else {
        tokens_describe(text, size, &eval->stream);
        append_text(text, size, " in %lld rows", (long long)eval->rows);
    }
}
