/*
dataloader/eval_loader.h: evaluation by multiple choice: HellaSwag (Zellers et al. 2019), as llm.c writes it. This file
has the format, the rows of tokens for the model, and the scores from their losses; trainer/ runs the model. It knows
nothing of ranks.

    evaluations_open     reads and checks the files; each element of the list is an evaluation
    evaluation_fit       fits it to the model: T and V
    evaluation_row       inputs and targets of a row
    evaluation_score     acc and acc_norm, from the sums of the rows' losses

Theory. All numbers of a file are little-endian:

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
*/
#pragma once

#include "../dataloader.h"

enum { CHOICE_MAGIC = 20240522, CHOICE_BEGIN = 65535 };

// A row of multiple choice. A context or completion is its length, then its tokens.
typedef struct {
    const uint16_t *context, *completion;
    int completions; // the example has these: one row after the other
    bool right;
} ChoiceRow;

typedef struct {
    char* path;
    int64_t rows;
    int T;
    double* sums; // (rows): sums of the losses; the caller fills it
    MappedFile map;
    ChoiceRow* choice; // (rows)
    int room, examples;
    int64_t cut; // rows whose context is too long
} Evaluation;

typedef struct {
    Evaluation* item;
    int count;
} Evaluations;

static inline void evaluations_close(Evaluations* list) {
    for (int i = 0; i < list->count; i++) {
        Evaluation* eval = &list->item[i];
        free(eval->path);
        free(eval->sums);
        free(eval->choice);
        file_unmap(&eval->map);
    }
    free(list->item);
    memset(list, 0, sizeof *list);
}

// ---- Rows -------------------------------------------------------------------------------------------------------

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
    if (eval->map.size < shard_header_bytes || shard_header_word(data, 0) != CHOICE_MAGIC ||
        shard_header_word(data, 1) != 1)
        return fail(error, "%s is no file of multiple choice, as llm.c's hellaswag.py writes it (version 1)",
                    eval->path);
    const int count = shard_header_word(data, 2);
    const uint16_t* at = (const uint16_t*)(const void*)(data + shard_header_bytes);
    const uint16_t* end = at + (eval->map.size - shard_header_bytes) / 2;
    for (; eval->examples < count; eval->examples++)
        if (!choice_read(eval, &at, end))
            return fail(error, "%s: example %d is damaged; make the file again", eval->path, eval->examples);
    return (count > 0 && at == end && eval->map.size % 2 == 0) ||
           fail(error, "%s: the header has %d examples, the file another number; make it again", eval->path, count);
}

static inline bool are_below(const uint16_t* part, int V) {
    for (int i = 1; i <= part[0]; i++)
        if (part[i] >= V) return false;
    return true;
}

// Fits the rows to a model of sequences of T tokens and a vocabulary of V: whether all tokens are below V and all
// completions fit into T. Counts the rows whose context is cut.
static inline bool evaluation_fit(Evaluation* eval, int T, int V, Error* error) {
    eval->T = T;
    eval->cut = 0;
    for (int64_t row = 0; row < eval->rows; row++) {
        const uint16_t *context = eval->choice[row].context, *completion = eval->choice[row].completion;
        if (!are_below(context, V) || !are_below(completion, V))
            return fail(
                error,
                "%s: a token of completion %lld or its context is not in the model's vocabulary of %d: make the "
                "file with the model's tokenizer",
                eval->path, (long long)row, V);
        if (completion[0] > T)
            return fail(error, "%s: completion %lld has %d tokens, more than --seq %d has room for", eval->path,
                        (long long)row, completion[0], T);
        eval->cut += context[0] + completion[0] > T + 1;
    }
    free(eval->sums);
    eval->sums = (double*)checked_calloc((size_t)eval->rows, sizeof(double), "the losses of an evaluation");
    return true;
}

// Sets inputs (T) and targets (T) of row 0 <= row < rows.
static inline void evaluation_row(int32_t* inputs, int32_t* targets, const Evaluation* eval, int64_t row) {
    const uint16_t *context = eval->choice[row].context, *completion = eval->choice[row].completion;
    const int64_t before = context[0], all = before + completion[0], skipped = max_i64(0, all - (eval->T + 1));
    for (int i = 0; i < eval->T; i++) {
        inputs[i] = 0;
        targets[i] = -1;
    }
    for (int64_t i = skipped; i < all; i++) {
        const int32_t token = i < before ? context[1 + i] : completion[1 + i - before];
        if (i + 1 < all) inputs[i - skipped] = token;
        if (i >= before) targets[i - skipped - 1] = token;
    }
}

// Opens the files of a comma-separated list of names and patterns. False, *error filled, *list closed, if one cannot be
// read.
static inline bool evaluations_open(Evaluations* list, const char* names, Error* error) {
    PathList files = {NULL, 0, 0};
    bool ok = path_list_append_names(&files, names, error);
    list->item = (Evaluation*)checked_calloc((size_t)files.count + 1, sizeof(Evaluation), "the list of evaluations");
    for (list->count = 0; list->count < files.count && ok; list->count++) {
        Evaluation* eval = &list->item[list->count];
        eval->path = checked_strdup(files.path[list->count], "the name of an evaluation");
        ok = file_map(&eval->map, eval->path, error) && choices_read(eval, error);
    }
    path_list_free(&files);
    if (!ok) evaluations_close(list);
    return ok;
}

// ---- Scores -----------------------------------------------------------------------------------------------------

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

// The fraction of the examples that are answered right, by sums or (mean) by means: acc, or acc_norm.
static inline double evaluation_score(const Evaluation* eval, bool mean) {
    int64_t right = 0;
    for (int64_t first = 0; first < eval->rows; first += eval->choice[first].completions)
        right += choice_is_right(eval, first, mean);
    return (double)right / (double)eval->examples;
}
