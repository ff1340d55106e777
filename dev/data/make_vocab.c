/*
make_vocab.c: trains a vocabulary on your texts (dataloader/tokenizer/bpe_train.h), and writes it as a tokenizer.json
that Hugging Face's tokenizers loads.

    build/make_vocab --data tinyshakespeare.txt --vocab 4096 --out tokenizer.json
    build/tokenize --tokenizer tokenizer.json --data tinyshakespeare.txt --out data/shakespeare --val 0.1

The words are counted on all cores. The same texts give the same vocabulary, whatever the number of threads.
*/
#include "../../util/options.h"
#include "../../dataloader/tokenizer/bpe_train.h"
#include "documents.h"

typedef struct {
    const char *data, *out, *field, *delimiter;
    int64_t vocab, least, threads;
    int split; // choice
    bool help;
} VocabOptions;

typedef struct {
    WordCounts words;
    SplitKind split;
} VocabThread;

static void count_document(void* context, const Document* document) {
    VocabThread* thread = (VocabThread*)context;
    word_counts_text(&thread->words, thread->split, document->text, document->n);
}

// Counts the words of all texts into *all.
static bool count_all(WordCounts* all, const Texts* texts, const VocabOptions* options, Error* error) {
    const int threads = (int)options->threads;
    VocabThread* thread = (VocabThread*)checked_calloc((size_t)threads, sizeof *thread, "threads");
    void* context[THREADS_MOST];
    for (int i = 0; i < threads; i++) {
        word_counts_open(&thread[i].words);
        thread[i].split = (SplitKind)(SPLIT_GPT2 + options->split);
        context[i] = &thread[i];
    }
    const TextWork work = {count_document, NULL, context, threads};
    const bool ok = texts_work(texts, &work, "count", error);
    for (int i = 0; i < threads; i++) {
        if (ok) word_counts_join(all, &thread[i].words);
        word_counts_free(&thread[i].words);
    }
    free(thread);
    return ok;
}

static bool run(const VocabOptions* options, Error* error) {
    Tokenizer tokenizer, cut;
    Texts texts = {};
    WordCounts words;
    tokenizer_bytes(&cut);
    texts.field = options->field;
    texts.delimiter = options->delimiter;
    texts.tokenizer = &cut;
    word_counts_open(&words);
    const double start = seconds_now();
    bool ok = tokenizer_can_save(options->out, error) && texts_open(&texts, options->data, error) &&
              count_all(&words, &texts, options, error);
    const double counted = seconds_now();
    if (ok) {
        tokenizer_learn(&tokenizer, &words, (int)options->vocab, options->least,
                        (SplitKind)(SPLIT_GPT2 + options->split));
        ok = tokenizer_save(&tokenizer, options->out, error);
        if (ok)
            printf(
                "%d words of %.1f MB counted in %.1f s; a vocabulary of %d tokens, %d merges, learned in %.1f s: %s\n",
                words.words, (double)texts.bytes / 1e6, counted - start, tokenizer.vocab, tokenizer.merge_count,
                seconds_now() - counted, options->out);
        if (ok && tokenizer.vocab < options->vocab)
            printf("fewer than --vocab %lld: no other pair is there %lld times\n", (long long)options->vocab,
                   (long long)options->least);
        tokenizer_free(&tokenizer);
    }
    word_counts_free(&words);
    texts_close(&texts);
    tokenizer_free(&cut);
    return ok;
}

int main(int argc, char** argv) {
    process.name = "make_vocab";
    VocabOptions options = {};
    Error error;
    options.field = "text";
    options.threads = usual_threads();
    options.least = 2;
    options.vocab = 8192;
    Option table[] = {
        option_string("data", &options.data, "GLOB", "texts, .jsonl files and folders of these, comma-separated"),
        option_string("field", &options.field, "NAME", "of a line of .jsonl: where the text is"),
        option_string("delimiter", &options.delimiter, "TEXT", "what stands between two documents in a text"),
        option_int("vocab", &options.vocab, 257, VOCAB_MOST, "tokens: the 256 bytes, merges, and <|endoftext|>"),
        option_choice("split", &options.split, "gpt2|llama3|qwen2", "how a text is cut into words"),
        option_int("least", &options.least, 1, 1e15, "occurrences that a pair needs to become a token"),
        option_string("out", &options.out, "FILE", "tokenizer.json to write"),
        option_int("threads", &options.threads, 1, THREADS_MOST, "[all cores]"),
        option_flag("help", &options.help, "this list"),
    };
    const int n = (int)(sizeof table / sizeof table[0]);
    options_of_program(table, n, argc, argv, &options.help, "make_vocab makes a vocabulary from texts.");
    if (!options.data || !options.out) die_usage("--data and --out are needed; --help lists all options");
    if (!run(&options, &error)) die("%s", error.text);
    return 0;
}
