/*
parallel/vocab.h: vocabulary parallelism (Shoeybi et al. 2019, section 3): each tensor rank has V / t rows of the
embedding and columns of the logits.

    vocab_parallel_embedding_forward, _backward    tokens to the residual stream; the tables' gradients
    vocab_parallel_cross_entropy, _backward        logits to losses; the logits' gradient

For the cross entropy the ranks exchange three numbers a row, never the logits: the maximum of its logits, the sum of
exp(logit - maximum), and the target's logit, which one rank has and the others add zero to.
*/
#pragma once

#include "halves.h"
#include "tensor.h"

// ---- The embeddings ---------------------------------------------------------------------------------------------

// x[0] (R, C): the embeddings of acts->inputs, and of their positions where these are learned. A rank has the rows of
// its tokens and zeros for other ranks' tokens: the sum over the ranks is the embedding, with which every stream
// begins. layer: -1, where the tables are.
static inline void vocab_parallel_embedding_forward(const Pass* pass, int layer) {
    const Stage* stage = pass->stage;
    Activations* acts = pass->acts;
    const int C = stage->model.C, streams = stage->layout.streams, n = acts->tokens;
    const int rows = acts->R / streams;
    floatX* x = streams > 1 ? acts->branch : acts->x[0];
    floatX* partial = tp_partial_buffer(pass, x);
    embedding_forward(partial, acts->inputs, weight(stage, layer, WTE), n, C, layout_vocab_offset(&stage->layout, 0),
                      layout_embedding_rows(&stage->layout));
    reduce_from_tensor_region(stage->groups, x, partial, (int64_t)n * C);
    if (stage->model.position == POSITION_LEARNED) {
        const int64_t row = acts->split ? (int64_t)stage->layout.parallel.mesh.tensor * rows : acts->first;
        position_forward(x, weight(stage, layer, WPE), row, rows, stage->T, C); // not acts->T: 1 where it decodes
    }
    if (streams > 1) caat_unpack(acts->x[0], x, x, 1.0f, streams, n, C, C); // a copy for every stream
}

// The embedding's gradient (R, C): dx, or in a CAAT-Net the sum of the streams'.
static inline const floatX* embedding_output_grad(const Pass* pass) {
    return is_caat(pass->stage) ? pass->acts->branch : pass->g->dx;
}

static inline void embedding_reduce_streams(const Pass* pass, int layer) {
    (void)layer;
    if (is_caat(pass->stage)) caat_reduce_streams(pass->stage, pass->acts, pass->g->dx);
}

// dwpe += the rows of dx that this rank has.
static inline void vocab_parallel_position_backward(const Pass* pass, int layer) {
    const Stage* stage = pass->stage;
    const Activations* acts = pass->acts;
    const int rows = acts->R / stage->layout.streams;
    const int64_t first = acts->split ? (int64_t)stage->layout.parallel.mesh.tensor * rows : 0;
    position_backward(gradient(stage, layer, WPE), embedding_output_grad(pass), first, rows, acts->T, stage->model.C);
}

// The rows of dx go to those of dwte, or of the second gradient of a tied embedding.
static inline void vocab_parallel_token_backward(const Pass* pass, int layer) {
    const Stage* stage = pass->stage;
    (void)layer;
    const Layout* layout = &stage->layout;
    float* dwte = has_two_embedding_grads(stage)
                      ? stage->grad_embedding
                      : grad_bucket(&stage->grads, layout, embedding_use_bucket(layout))->gradient;
    embedding_backward(dwte, tp_gather_input(pass, embedding_output_grad(pass)), pass->acts->inputs, pass->acts->tokens,
                       stage->model.C, layout_vocab_offset(layout, 0), layout_embedding_rows(layout));
}

// The gradients of the embeddings, from the gradient of the residual stream, of all parts. A tied embedding has two
// gradients, which are accumulated over the micro-batches in separate buffers and added when both are complete: here,
// or, where the two uses are on two stages, between them (sum_tied_embedding_grads). So the order of additions
// is the same for every p, except with ZeRO 2, which adds both to its shard in every micro-batch. ZeRO 2 fills one
// bucket at a time, so all parts finish one table, then the other.
static inline void vocab_parallel_embedding_backward(const Pass* part) {
    const Stage* stage = part->stage;
    const int64_t n = (int64_t)layout_embedding_rows(&stage->layout) * stage->model.C;
    each_part(part, -1, embedding_reduce_streams);
    if (stage->model.position == POSITION_LEARNED) {
        grad_bucket_begin(part, -1, WPE);
        each_part(part, -1, vocab_parallel_position_backward);
        grad_bucket_ready(part, -1, WPE);
    }
    grad_bucket_reset(&part->stage->grads, &stage->layout, embedding_use_bucket(&stage->layout));
    each_part(part, -1, vocab_parallel_token_backward);
    if (has_two_embedding_grads(stage) && part->reduce) accumulate(gradient(stage, -1, WTE), stage->grad_embedding, n);
    bucket_ready(part, embedding_use_bucket(&stage->layout));
}

// ---- The cross entropy ------------------------------------------------------------------------------------------

// The logits of one stream: (tokens, V).
static inline floatX* logits_of(const Pass* pass, int stream) {
    return pass->acts->head->logits + (int64_t)stream * pass->acts->tokens * pass->stage->layout.V;
}

static inline VocabSlice vocab_slice(const Layout* layout, int stream) {
    const VocabSlice slice = {layout_vocab_offset(layout, stream), layout_vocab_used(layout, stream), layout->V};
    return slice;
}

// Whether this rank has the whole vocabulary in one piece and needs a gradient: the logits then become it at once.
static inline bool uses_fused_classifier(const Pass* pass) {
    return tp_cuts(&pass->stage->layout.parallel) == 1 && pass->acts->targets.scale != 0;
}

// losses (tokens) = -log softmax(logits)[target], on every rank. The streams of a rank first combine theirs, in the
// memory of the first.
static inline void vocab_parallel_cross_entropy(const Pass* pass) {
    const Activations* acts = pass->acts;
    const Layout* layout = &pass->stage->layout;
    const int n = acts->tokens;
    Comm* tensor = &pass->stage->groups->tensor;
    HeadActivations* h = acts->head;
    if (uses_fused_classifier(pass)) {
        crossentropy_fused(h->losses, h->logits, acts->targets, n, vocab_slice(layout, 0));
        return;
    }
    for (int i = 0; i < layout->streams; i++) {
        float* largest = h->row_max + (int64_t)i * n;
        crossentropy_max(largest, logits_of(pass, i), n, vocab_slice(layout, i));
        if (i > 0) accumulate_max(h->row_max, largest, n);
    }
    comm_all_reduce(tensor, h->row_max, n, COMM_FLOAT, COMM_MAX);
    for (int i = 0; i < layout->streams; i++) {
        float* sum = h->row_sum + 2 * (int64_t)i * n;
        crossentropy_sum(sum, sum + n, logits_of(pass, i), h->row_max, acts->targets, n, vocab_slice(layout, i));
        if (i > 0) accumulate(h->row_sum, sum, 2 * (int64_t)n);
    }
    comm_all_reduce(tensor, h->row_sum, 2 * (int64_t)n, COMM_FLOAT, COMM_SUM);
    crossentropy_loss(h->losses, h->row_sum, h->row_sum + n, n);
}

// The logits become their gradient, d(sum of losses * scale) / d(logits).
static inline void vocab_parallel_cross_entropy_backward(const Pass* pass) {
    const Activations* acts = pass->acts;
    const HeadActivations* h = acts->head;
    const Layout* layout = &pass->stage->layout;
    if (uses_fused_classifier(pass)) return;
    for (int i = 0; i < layout->streams; i++)
        crossentropy_backward(logits_of(pass, i), h->row_max, h->row_sum, acts->targets, acts->tokens,
                              vocab_slice(layout, i));
}
