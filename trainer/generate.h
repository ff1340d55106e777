/*
trainer/generate.h: the model writes text. The prompt is fed as the beginning of a sequence (prefill), then one token at
a time is sampled from the logits of the last one and fed in turn; keys and values of earlier tokens are in a cache. All
ranks of a replica take part: tensor ranks hold slices of the logits, pipeline ranks pass the residual stream on.
*/
#pragma once

#include "../gpt.h"
#include "../parallel/pipeline.h"
#include "batch.h"
#include "logger.h"
#include "sampler.h"
#include "trainer.h"

// The state of drawing the next token of a text.
typedef struct {
    Sampling how;
    Candidate* list; // (V)
    float* logits;   // (t V): of the whole vocabulary
    uint64_t seed, stream;
} Sampler;

// A text: the prompt, then the tokens that the model has written.
typedef struct {
    TokenList list;
    int read, written;       // tokens
    double reading, writing; // seconds
} Generation;

// Passes tokens through the whole model, chunk by chunk: the n first of a sequence (position < 0), or one.
static inline void feed(Trainer* t, const int32_t* tokens, int n, int T, int position) {
    Stage* stage = &t->stage;
    Activations* acts = &stage->activations[0];
    const bool decode = position >= 0;
    reserve_microbatches(t, 1);
    device_zero(t->batch.device, (size_t)T * sizeof(int32_t));
    device_from_host(t->batch.device, tokens, (size_t)n * sizeof(int32_t));
    for (int c = 0; c < stage->layout.parallel.v; c++) {
        const floatX* before = c > 0 ? chunk_output(acts) : NULL;
        activations_bind(acts, stage, c, 0, 1, T, decode);
        const int64_t values = (int64_t)acts->R * stage->model.C;
        acts->inputs = t->batch.device;
        acts->keeps_kv = !decode;
        acts->first = decode ? position : 0;
        if (before && schedule_peer(&t->schedule, RECEIVE_FORWARD, c) == stage->layout.parallel.mesh.pipeline)
            device_copy(acts->x[0], before, (size_t)values * sizeof(floatX));
        pipeline_hand_over(stage, &t->schedule, acts->x[0], values, RECEIVE_FORWARD, c);
        chunk_forward(stage, acts);
        pipeline_hand_over(stage, &t->schedule, chunk_output(acts), values, SEND_FORWARD, c);
    }
}

// Feeds the first n tokens of a sequence at once: keys and values go into the cache. Where rows are split over tensor
// ranks, padding with token 0 gives all ranks the same number: no earlier token sees the padding, and its places in the
// cache are written again before they are read.
static inline void prefill(Trainer* t, const int32_t* tokens, int n) {
    const size_t multiple = splits_rows(&t->stage) ? (size_t)t->stage.layout.parallel.mesh.t : 1;
    feed(t, tokens, n, (int)round_up((size_t)n, multiple), -1);
}

// Feeds the token at a position. Afterwards the last stage has the logits of the next one.
static inline void decode_token(Trainer* t, int32_t token, int position) { feed(t, &token, 1, 1, position); }

// The pipeline rank that has the head.
static inline int lm_head_rank(const Trainer* t) {
    return pipeline_holder(&t->schedule.config, pipeline_last(&t->schedule.config));
}

// Gathers the logits of the next token, (t V) of the whole vocabulary, on the ranks of the last stage.
static inline void gather_logits(Trainer* t, float* logits) {
    const Stage* stage = &t->stage;
    const int64_t n = (int64_t)stage->layout.streams * stage->layout.V;
    float* mine = logits + stage->layout.parallel.mesh.tensor * n;
    device_to_floats(mine, stage->head[0].logits, n);
    comm_all_gather(&t->groups.tensor, logits, mine, n, COMM_FLOAT);
}

// Draws token number i on the last stage and broadcasts it.
static inline int32_t next_token(Trainer* t, const Sampler* x, int i) {
    Stage* stage = &t->stage;
    int32_t next = 0;
    heartbeat_move(watchdog_row(&t->watch));
    if (stage->layout.last_stage) {
        gather_logits(t, x->logits);
        if (stage->layout.parallel.mesh.tensor == 0) {
            const double coarse = (double)random_uniform(x->seed, x->stream, 2 * (uint64_t)i); // 24 bits each
            const double fine = (double)random_uniform(x->seed, x->stream, 2 * (uint64_t)i + 1);
            next = sample_token(&x->how, x->logits, stage->model.V, coarse + 0x1p-24 * fine, x->list);
        }
        comm_broadcast(&t->groups.tensor, &next, 1, COMM_INT32, 0);
    }
    comm_broadcast(&t->groups.pipeline, &next, 1, COMM_INT32, lm_head_rank(t));
    return next;
}

// The first token of a text without a prompt: the token before documents, else a new line, or, where the vocabulary is
// not known, probably GPT-2's end of text.
static inline int32_t default_bos_token(const Trainer* t) {
    const Tokenizer* tokenizer = &t->tokenizer;
    const int V = t->stage.model.V;
    if (!tokenizer->vocab) return V > 50256 ? 50256 : 0;
    const int token = tokenizer->document >= 0 ? tokenizer->document : (int)tokenizer->byte_token[(int)'\n'];
    return token < V ? token : 0;
}

// Continues the prompt x->list, by --max-new-tokens or `usual` tokens, or to an end token. out (rank 0; NULL on others)
// gets each character as soon as it is complete, or token numbers where the vocabulary is not known. When a text
// outgrows the T tokens of the model's context, its last T / 2 + 1 tokens are fed as a new sequence. Returns false if
// the logits were no distribution.
static inline bool generate_tokens(Trainer* t, Generation* x, int usual, FILE* out) {
    const Settings* o = &t->settings;
    const Stage* stage = &t->stage;
    const Tokenizer* tokenizer = &t->tokenizer;
    const int V = stage->model.V, all = stage->layout.V * tp_cuts(&stage->layout.parallel);
    const int most = o->max_new_tokens ? (int)o->max_new_tokens : usual;
    Sampler sampler = {
        {o->temperature, o->top_p, o->top_k}, NULL, NULL, (uint64_t)o->seed, hash_string("sample") + (uint64_t)t->step};
    sampler.list = (Candidate*)checked_malloc((size_t)V * sizeof *sampler.list, "a text");
    sampler.logits = (float*)checked_malloc((size_t)all * sizeof(float), "a text");
    TextWriter writer = {out, "", 0, 0};
    int begin = 0, fed = 0; // the token at position 0; the end of the tokens in the cache
    int32_t next = 0;
    const double started = seconds_now();
    x->read = (int)x->list.count;
    for (x->written = 0; x->written < most; x->written++) {
        const int n = x->read + x->written;
        if (n - begin > stage->T) begin = fed = n - 1 - stage->T / 2;
        if (n - fed > 1) prefill(t, x->list.token + fed, n - 1 - fed); // the beginning of a sequence
        fed = n;
        decode_token(t, x->list.token[n - 1], n - 1 - begin);
        next = next_token(t, &sampler, x->written);
        if (x->written == 0) x->reading = seconds_now() - started;
        if (next < 0 || tokenizer_ends(tokenizer, next)) break;
        token_list_reserve(&x->list, 1);
        x->list.token[x->list.count++] = next;
        if (!out) continue;
        if (tokenizer->vocab > 0)
            text_writer_put_token(&writer, tokenizer, next);
        else
            fprintf(out, "%d ", next);
    }
    if (out) text_writer_end(&writer);
    x->writing = seconds_now() - started - x->reading;
    free(sampler.list);
    free(sampler.logits);
    return next >= 0;
}

// The tokens of the prompt, preceded by the token that begins a text if the vocabulary has one for that alone (Llama
// 3's, not GPT-2's). Without a prompt: the default token.
static inline TokenList encode_prompt(const Trainer* t) {
    const Tokenizer* tokenizer = &t->tokenizer;
    TokenList list = {NULL, 0, 0};
    Encoder encoder;
    token_list_reserve(&list, 1);
    const char* prompt = t->settings.generate;
    if (!prompt || !*prompt) {
        list.token[list.count++] = default_bos_token(t);
        return list;
    }
    if (tokenizer->document >= 0 && !tokenizer_ends(tokenizer, tokenizer->document))
        list.token[list.count++] = tokenizer->document;
    encoder_open(&encoder);
    tokenizer_encode(tokenizer, &encoder, &list, (const unsigned char*)prompt, strlen(prompt), true);
    encoder_close(&encoder);
    for (size_t i = 0; i < list.count; i++) {
        if (list.token[i] >= t->stage.model.V)
            die_usage("--generate: token %d of the text is number %d, the model has %d: this is not its vocabulary",
                      (int)i, list.token[i], t->stage.model.V);
    }
    return list;
}

// Writes a sample in a training run, of `usual` tokens if --max-new-tokens is not given. The first data replica does,
// the others return and wait for it at the next collective.
static inline void sample(Trainer* t, int usual) {
    enter_phase(t, PHASE_SAMPLING);
    if (t->stage.layout.parallel.mesh.data > 0) return;
    end_line();
    if (is_main(t)) printf("sample:\n\n");
    Generation text = {encode_prompt(t), 0, 0, 0, 0};
    if (is_main(t) && t->settings.generate) fputs(t->settings.generate, stdout);
    const bool ok = generate_tokens(t, &text, usual, is_main(t) ? stdout : NULL);
    if (is_main(t)) printf(ok ? "\n\n" : "\n(the logits are no distribution: NaN, or all -inf)\n\n");
    token_list_free(&text.list);
}

// --generate without training: the text and its continuation go to stdout, everything else to stderr.
static inline void generate(Trainer* t) {
    const Stage* stage = &t->stage;
    enter_phase(t, PHASE_SAMPLING);
    if (stage->layout.parallel.mesh.data > 0) return;
    Generation text = {encode_prompt(t), 0, 0, 0, 0};
    const double sent = comm_bytes(&t->groups.tensor);
    if (is_main(t) && (int64_t)text.list.count > stage->T)
        printf("text      of its %d tokens the last %d are read: the context is %d, see --seq\n", (int)text.list.count,
               stage->T / 2 + 1, stage->T);
    if (is_main(t)) fputs(t->settings.generate, t->text), fflush(t->text);
    const bool ok = generate_tokens(t, &text, 256, is_main(t) ? t->text : NULL);
    if (is_main(t)) {
        fputc('\n', t->text);
        if (fflush(t->text) != 0) die("stdout: cannot write: %s", strerror(errno));
        printf("done      %d tokens read in %.4f s, %d written in %.4f s: %.1f tokens/s\n", text.read, text.reading,
               text.written, text.writing, text.writing > 0 ? (double)(text.written - 1) / text.writing : 0);
        if (t->groups.tensor.size > 1)
            printf("sent      %.0f bytes by each tensor rank\n", comm_bytes(&t->groups.tensor) - sent);
    }
    token_list_free(&text.list);
    if (!ok) die("--generate: the logits are no distribution (NaN, or all -inf): the weights are not finite");
}
