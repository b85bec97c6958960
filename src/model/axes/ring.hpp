// Ring attention over context-parallel ranks (Liu et al., arXiv:2310.01889). A rank keeps its tokens, and blocks of keys and values go
// round: in step s it has those of the rank that is s before it, and what its queries make of them joins what they have. A rank's tokens
// are a chunk of the sequence's first half and one of its second (positions_of), so that what the causal mask leaves of a block is half of
// it in every step on every rank: of a rank before this one the keys of the first chunk, for all queries; of one after it all keys, for the
// queries of the second chunk. Which of both it is, is decided inside the calls: all ranks run one schedule. With a window a rank sees
// less, or nothing, of the blocks that are far away (ring_turns.hpp), and a block that nobody sees is passed over: the next goes further at
// once.
#pragma once
#include "model/record/recorder.hpp"

namespace tessera {

/// See attention() in context.hpp; of M tokens of this rank.
void ring_attention(Recorder& r, Value out, Value lse, Value qkv);
void ring_attention_backward(Recorder& r, Value d_qkv, Value d_out, Value qkv, Value out, Value lse);

}  // namespace tessera
