// Keys of the deck: model, adapters, experts.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> model_keys() {
  return {
      // [model]
      {KEY(model.layers), .read_by = ReadBy::size, .theirs = "num_hidden_layers", .type = integer, .required = true, .unit = "layers",
       .limits = {.least = 1, .most = 10000}, .identity = true, .help = "Number of transformer layers."},
      {KEY(model.width), .read_by = ReadBy::size, .theirs = "hidden_size", .type = integer, .required = true, .unit = "features",
       .limits = {.least = 1, .most = max_dim}, .identity = true, .help = "Width of the residual stream."},
      {KEY(model.heads), .read_by = ReadBy::size, .theirs = "num_attention_heads", .type = integer, .required = true, .unit = "heads",
       .limits = {.least = 1, .most = max_dim}, .identity = true, .help = "Query heads of attention."},
      {KEY(model.kv_heads), .read_by = ReadBy::size, .theirs = "num_key_value_heads", .type = integer, .unit = "heads",
       .limits = {.least = 1, .most = max_dim}, .automatic = Auto::resolved, .identity = true,
       .help = "Key and value heads, a divisor of model.heads; auto is model.heads."},
      {KEY(model.head_dim), .read_by = ReadBy::size, .theirs = "head_dim", .type = integer, .unit = "features",
       .limits = {.least = 0, .most = largest_head_dim}, .automatic = Auto::resolved, .identity = true,
       .help = "Features of one head, an even number; auto is model.width / model.heads."},
      {KEY(model.ff_width), .read_by = ReadBy::size, .theirs = "intermediate_size", .type = integer, .required = true, .unit = "features",
       .limits = {.least = 1, .most = max_dim}, .identity = true, .help = "Inner width of the feed-forward block."},
      {KEY(model.activation), .read_by = ReadBy::block, .theirs = "hidden_act", .type = text, .identity = true, .silent = true,
       .help = "Activation of the feed-forward block. If gated (model.gated), the gate: \"silu\" (SwiGLU), \"gelu\", its approximation "
               "\"gelu_tanh\" (GeGLU), or \"clamped_silu\" (GPT-OSS). clamped_silu is g sigmoid(1.702 g) x (other half + 1), with gates up "
               "to model.gate_limit and the other half within it. Without a gate: \"gelu\", \"gelu_tanh\", \"relu_squared\" or \"xielu\", "
               "which learns two shapes (Apertus)."},
      {KEY(model.gated), .read_by = ReadBy::block, .theirs = "the gate that the feed-forward blocks of its model_type have",
       .type = boolean, .identity = true, .silent = true,
       .help = "The feed-forward block multiplies its features by as many activated gates. false: it activates the features themselves."},
      {KEY(model.mlp_bias), .read_by = ReadBy::block, .theirs = "the biases of their products", .type = boolean, .identity = true,
       .silent = true, .help = "Adds biases to the products of the feed-forward block."},
      {KEY(model.gate_limit), .read_by = ReadBy::block, .theirs = "swiglu_limit", .type = real, .limits = {.above = 0, .most = 1e6},
       .identity = true, .silent = true,
       .help = "With model.activation = \"clamped_silu\": upper limit of the gates, and limit in both directions of the features that they "
               "multiply."},
      {KEY(model.vocab), .read_by = ReadBy::size, .theirs = "vocab_size", .type = integer, .required = true, .unit = "tokens",
       .limits = {.least = 1, .most = 2147483647}, .identity = true,
       .help = "Size of the vocabulary. Every token id of the data is below it."},
      {KEY(model.tied), .read_by = ReadBy::ends, .theirs = "tie_word_embeddings", .type = boolean, .identity = true,
       .help = "Uses the embedding matrix as the output head too."},
      {KEY(model.qk_norm), .read_by = ReadBy::attention, .theirs = "the norm of queries and keys that its model_type has", .type = boolean,
       .identity = true, .help = "Normalises the queries and keys of each head before the rotation."},
      {KEY(model.wide_qk_norm), .read_by = ReadBy::attention, .theirs = "the width of that norm", .type = boolean, .identity = true,
       .silent = true,
       .help = "model.qk_norm normalises over the features of all query heads together, and of all key heads together (OLMo 2)."},
      {KEY(model.qkv_bias), .read_by = ReadBy::attention, .theirs = "the bias of queries, keys and values that its model_type has",
       .type = boolean, .identity = true, .help = "Adds a bias to the query, key and value projections."},
      {KEY(model.attention_out_bias), .read_by = ReadBy::attention, .theirs = "the bias of the attention's output that its model_type has",
       .type = boolean, .identity = true, .silent = true, .help = "Adds a bias to the attention's output projection."},
      {KEY(model.attention_sinks), .read_by = ReadBy::attention, .theirs = "the sinks that its model_type has", .type = boolean,
       .identity = true, .silent = true,
       .help = "Gives each query head a logit without a value, which its queries attend to besides their keys (GPT-OSS)."},
      {KEY(model.norm_eps), .read_by = ReadBy::block, .theirs = "rms_norm_eps", .type = real, .limits = {.above = 0, .below = 1},
       .identity = true, .help = "Epsilon of RMSNorm, inside the square root."},
      {KEY(model.norm_placement), .read_by = ReadBy::block, .theirs = "the placement of its model_type's norms", .type = text,
       .identity = true, .silent = true,
       .help = "Position of the norms of attention and feed-forward block: \"pre\" on their input, \"post\" on their output (OLMo 2), "
               "\"both\" (Gemma). \"parallel\": both blocks read one norm of the residual stream, and their outputs are added to it "
               "together (Command R)."},
      {KEY(model.norm_form), .read_by = ReadBy::block, .theirs = "the form of its model_type's norms", .type = text, .identity = true,
       .silent = true,
       .help = "Kind of norm. \"weight\": RMSNorm. \"one_plus_weight\": RMSNorm that scales by 1 + weight, with weights that start at zero "
               "(Gemma). \"layer_norm\" also subtracts the mean and adds a bias. \"layer_norm_no_bias\" also subtracts the mean (Command "
               "R). With both layer norms, queries and keys are normalised by RMSNorm."},
      {KEY(model.embedding_scale), .read_by = ReadBy::ends, .theirs = "the scale of its embedding", .type = real,
       .limits = {.above = 0, .most = 1e6}, .zero = "sqrt_width", .identity = true, .silent = true,
       .help = "Factor of the embedding's rows at the start of the residual stream, rounded to precision.compute. \"sqrt_width\" is the "
               "square root of model.width (Gemma)."},
      {KEY(model.residual_scale), .read_by = ReadBy::block, .theirs = "residual_multiplier", .type = real,
       .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Factor of the outputs of attention and feed-forward blocks when they are added to the residual stream (Granite)."},
      {KEY(model.attention_scale), .read_by = ReadBy::attention, .theirs = "the scale of its attention", .type = real,
       .limits = {.least = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Factor of the products of queries and keys; 0: 1 / sqrt(model.head_dim)."},
      {KEY(model.attention_softcap), .read_by = ReadBy::attention, .theirs = "attn_logit_softcapping", .type = real,
       .limits = {.least = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Soft cap c of attention scores: a score x becomes c tanh(x / c) (Gemma 2); 0: none."},
      {KEY(model.head_bias), .read_by = ReadBy::ends, .theirs = "the bias that the head of its model_type has", .type = boolean,
       .identity = true, .silent = true, .help = "Adds a bias to the logits before they are scaled (Phi-1, Phi-2)."},
      {KEY(model.logit_scale), .read_by = ReadBy::ends, .theirs = "the scale of its logits", .type = real,
       .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true, .help = "Factor of the logits."},
      {KEY(model.logit_softcap), .read_by = ReadBy::ends, .theirs = "final_logit_softcapping", .type = real,
       .limits = {.least = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Soft cap c of the logits: a scaled logit x becomes c tanh(x / c) (Gemma 2); 0: none."},
      {KEY(model.init_std), .type = real, .limits = {.above = 0, .most = 10}, .identity = true,
       .help = "Standard deviation of the initial weights."},
      {KEY(model.rope_theta), .read_by = ReadBy::angles, .theirs = "rope_theta", .type = real, .limits = {.above = 1, .most = 1e12},
       .identity = true, .help = "Base of the rotary frequencies."},
      {KEY(model.rope_scaling), .read_by = ReadBy::angles, .theirs = "rope_type", .type = text, .identity = true,
       .help = "Scaling of the rotary frequencies for long contexts, as Hugging Face's classes compute it."},
      {KEY(model.rope_factor), .read_by = ReadBy::angles, .theirs = "factor of the rotation", .type = real, .unit = "ratio",
       .limits = {.least = 1, .most = 1e6}, .identity = true,
       .help = "Factor of the scaling, by which frequencies are slowed. llama3 and yarn slow only the low ones. longrope also scales "
               "cosines and sines by it."},
      {KEY(model.rope_low_freq_factor), .read_by = ReadBy::angles, .theirs = "low_freq_factor", .type = real, .unit = "ratio",
       .limits = {.above = 0, .most = 1e6}, .identity = true,
       .help = "llama3 scaling: the whole factor slows wavelengths longer than rope_original_context divided by this."},
      {KEY(model.rope_high_freq_factor), .read_by = ReadBy::angles, .theirs = "high_freq_factor", .type = real, .unit = "ratio",
       .limits = {.above = 0, .most = 1e6}, .identity = true,
       .help = "llama3 scaling: wavelengths shorter than rope_original_context divided by this are unchanged."},
      {KEY(model.rope_original_context), .read_by = ReadBy::angles, .theirs = "original_max_position_embeddings", .type = integer,
       .unit = "tokens", .limits = {.least = 1, .most = max_dim}, .identity = true,
       .help = "llama3, yarn, dynamic and longrope scaling: context length that the unscaled frequencies were made for."},
      {KEY(model.rope_beta_fast), .read_by = ReadBy::angles, .theirs = "beta_fast", .type = real, .unit = "turns",
       .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "yarn scaling: frequencies that rotate more often than this within rope_original_context are unchanged."},
      {KEY(model.rope_beta_slow), .read_by = ReadBy::angles, .theirs = "beta_slow", .type = real, .unit = "turns",
       .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "yarn scaling: the whole factor slows frequencies that rotate less often than this."},
      {KEY(model.rope_attention_factor), .read_by = ReadBy::angles, .theirs = "attention_factor", .type = real, .unit = "ratio",
       .limits = {.least = 0, .most = 1e3}, .identity = true, .silent = true,
       .help = "yarn and longrope scaling: factor of cosines and sines. 0: yarn takes 0.1 ln(rope_factor) + 1, longrope sqrt(1 + "
               "ln(rope_factor) / ln(rope_original_context))."},
      {KEY(model.rope_short_factors), .read_by = ReadBy::angles, .theirs = "short_factor", .type = reals,
       .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "longrope scaling: a number for each pair of features, which slows it in sequences of up to rope_original_context tokens."},
      {KEY(model.rope_long_factors), .read_by = ReadBy::angles, .theirs = "long_factor", .type = reals, .limits = {.above = 0, .most = 1e6},
       .identity = true, .silent = true,
       .help = "longrope scaling: the same for longer sequences. The length is batch.sequence_length. With data.document_mask it is the "
               "longest document of a step's batch, and in tessera generate the text so far."},
      {KEY(model.rope_truncate), .read_by = ReadBy::angles, .theirs = "truncate", .type = boolean, .identity = true, .silent = true,
       .help = "yarn scaling: the range between rope_beta_fast and rope_beta_slow is rounded to whole pairs of features. false: it is not "
               "rounded (GPT-OSS)."},
      {KEY(model.rotary_fraction), .read_by = ReadBy::rotation, .theirs = "partial_rotary_factor", .type = real, .unit = "ratio",
       .limits = {.above = 0, .most = 1}, .identity = true, .silent = true,
       .help = "Share of each head's features that is rotated, the first ones. model.head_dim times it must be an even number of features "
               "(partial_rotary_factor)."},
      {KEY(model.rope_pairs), .read_by = ReadBy::rotation, .theirs = "the pairs of features that its model_type rotates", .type = text,
       .identity = true, .silent = true,
       .help = "Features that are rotated together: \"halves\" pairs feature i with the one half of them further on; \"neighbours\" pairs "
               "2i with 2i + 1 (GLM-4)."},
      {KEY(model.window), .read_by = ReadBy::layers, .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim},
       .identity = true, .silent = true,
       .help = "Most keys that a query sees: its own and those right before it (sliding-window attention); 0: all before it."},
      {KEY(model.positions), .read_by = ReadBy::layers, .type = text, .identity = true, .silent = true,
       .help = "Positions of queries and keys: \"rope\" rotates them; \"none\" leaves them unchanged (NoPE)."},
      {KEY(model.learned_positions), .read_by = ReadBy::ends, .theirs = "n_positions", .type = integer, .unit = "tokens",
       .limits = {.least = 0, .most = max_dim}, .identity = true, .silent = true,
       .help = "Number of learned position vectors, which are added to the embedding's rows (GPT-2, with model.positions = \"none\"). "
               "Positions count from the start of a token's document, and no text may be longer. 0: none."},
      {KEY(model.pattern), .read_by = ReadBy::layers, .type = text, .identity = true, .silent = true,
       .help = "Kinds of the layers in order, one letter of model.kinds each. The pattern repeats until all layers have one: \"LLLLLG\" is "
               "five of L and one of G. Empty: all layers are as [model] says."},
      {KEY(model.kinds), .read_by = ReadBy::layers, .type = kinds, .identity = true, .silent = true,
       .help = "Kinds of layers, a table [[model.kinds]] each. `name` is a letter of model.pattern. `window`, `positions`, `rope_theta` "
               "and `rope_scaling` (only \"none\") replace those of [model]. `experts = false` gives its layers one feed-forward block of "
               "model.ff_width instead of experts."},
      {KEY(model.max_context), .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim},
       .help = "Context length that exports declare (max_position_embeddings); 0: batch.sequence_length."},

      {KEY(model.experts), .read_by = ReadBy::router, .theirs = "the number of experts", .type = integer, .unit = "experts",
       .limits = {.least = 0, .most = 4096}, .identity = true,
       .help = "Experts of each layer: feed-forward blocks among which a router chooses for each token. 0: one feed-forward block takes "
               "every token."},
      {KEY(model.dense_layers), .read_by = ReadBy::layers, .type = integer, .unit = "layers", .limits = {.least = 0, .most = max_dim},
       .identity = true, .silent = true,
       .help = "Number of first layers without experts. They have one feed-forward block of model.ff_width for all tokens "
               "(first_k_dense_replace)."},
      {KEY(model.experts_per_token), .read_by = ReadBy::router, .theirs = "num_experts_per_tok", .type = integer, .unit = "experts",
       .limits = {.least = 1, .most = 4096}, .identity = true,
       .help = "Experts that take each token: those with the largest router logits. Between equal logits, the first expert is taken."},
      {KEY(model.expert_ff_width), .read_by = ReadBy::router, .theirs = "the inner width of an expert", .type = integer, .unit = "features",
       .limits = {.least = 0, .most = max_dim}, .automatic = Auto::kept, .identity = true,
       .help = "Inner width of an expert; auto is model.ff_width."},
      {KEY(model.shared_ff_width), .read_by = ReadBy::router, .theirs = "shared_expert_intermediate_size", .type = integer,
       .unit = "features", .limits = {.least = 0, .most = max_dim}, .identity = true,
       .help = "Inner width of a shared expert, which takes every token besides the experts that the router chooses; 0: none. "
               "model.shared_gate gives it a gate (Qwen-MoE)."},
      {KEY(model.shared_gate), .read_by = ReadBy::router, .theirs = "the gate of the shared expert that its model_type has",
       .type = boolean, .identity = true, .silent = true,
       .help = "Multiplies the shared expert's output by the sigmoid of its own logit. false: its output is added unscaled (DeepSeek-V3, "
               "GLM-4.5; several shared experts count as one of their total width)."},
      {KEY(model.normalize_top_k), .read_by = ReadBy::router, .theirs = "norm_topk_prob", .type = boolean, .identity = true,
       .help = "Divides the weights of a token's experts by their sum (Mixtral). false keeps the probabilities over all experts."},
      {KEY(model.router_scores), .read_by = ReadBy::router, .theirs = "the scores of its model_type's experts", .type = text,
       .identity = true, .silent = true,
       .help = "Scores by which experts are chosen and weighted: \"softmax\", the probability among all; \"sigmoid\", the sigmoid of the "
               "logit (DeepSeek-V3, GLM-4.5). For sigmoids, model.router_aux_loss uses each one divided by their sum."},
      {KEY(model.router_scale), .read_by = ReadBy::router, .theirs = "routed_scaling_factor", .type = real, .unit = "ratio",
       .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Factor of the weights of a token's experts, except the shared expert's (routed_scaling_factor)."},
      {KEY(model.expert_groups), .read_by = ReadBy::router, .theirs = "n_group", .type = integer, .unit = "groups",
       .limits = {.least = 1, .most = most_expert_groups}, .identity = true, .silent = true,
       .help = "Equal groups of a layer's experts, with model.router_scores = \"sigmoid\" (n_group). A token's experts come from "
               "model.groups_per_token groups: those with the largest sum of their two best scores."},
      {KEY(model.groups_per_token), .read_by = ReadBy::router, .theirs = "topk_group", .type = integer, .unit = "groups",
       .limits = {.least = 1, .most = most_expert_groups}, .identity = true, .silent = true,
       .help = "Groups from which a token's experts are chosen (topk_group)."},
      {KEY(model.expert_bias), .read_by = ReadBy::router, .theirs = "the biases of experts that its model_type has", .type = boolean,
       .identity = true, .silent = true, .help = "Adds biases to the router's projection and to those of the experts (GPT-OSS)."},
      {KEY(model.router_aux_loss), .read_by = ReadBy::balance, .type = real, .limits = {.least = 0, .most = 1000}, .identity = true,
       .help = "Coefficient of the loss that balances experts. For each layer the loss is: experts x the sum over experts of (share of "
               "choices x mean probability). It is 1 if all experts have equal shares. It is computed for each micro-batch and averaged "
               "over those of a step. 0.01 is usual."},
      {KEY(model.router_z_loss), .read_by = ReadBy::balance, .type = real, .limits = {.least = 0, .most = 1000}, .identity = true,
       .help = "Coefficient of the mean square of the log-sum-exp of router logits, for each layer. 0.001 is usual."},
      {KEY(model.router_balance), .read_by = ReadBy::balance, .type = text, .identity = true,
       .help = "Method that balances experts. \"loss\": only model.router_aux_loss. \"bias\": each expert has a bias, which each step "
               "moves by the expert's load (arXiv:2408.15664, DeepSeek-V3). The bias is added to the probability when experts are chosen, "
               "but not when they are weighted. model.router_aux_loss applies with both."},
      {KEY(model.router_bias_rate), .read_by = ReadBy::balance, .type = real, .limits = {.least = 0, .most = 1}, .identity = true,
       .help = "With model.router_balance = \"bias\": amount by which each step changes a bias. Experts with fewer choices than the mean "
               "get more, experts with more choices get less. 0: biases stay as they are."},
      {KEY(model.freeze), .type = texts, .identity = true, .silent = true,
       .help =
           "Patterns of tensors that training does not change, for example [\"embedding.*\", \"layers.0.*\"]. `*` matches any characters, "
           "`?` any one; `tessera inspect` shows the names. Frozen tensors are stored in the compute type alone, without gradient, moments "
           "or fp32 copy. Tensors that one product computes are frozen together. A pattern that matches no tensor is refused."},

      // [lora]
      {MODEL_KEY(lora.rank), .type = integer, .limits = {.least = 0, .most = 4096}, .identity = true, .silent = true,
       .help = "Rank of low-rank adapters (LoRA): two small matrices for each of lora.targets. Only they are trained. The rest of the "
               "model is stored in the compute type, without gradients, moments or fp32 copy. 0: none."},
      {MODEL_KEY(lora.alpha), .type = real, .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Scale of the adapters: their output is multiplied by lora.alpha / lora.rank."},
      {MODEL_KEY(lora.dropout), .type = real, .limits = {.least = 0, .below = 1}, .identity = true, .silent = true,
       .help = "Share of an adapter's input features that a training step sets to zero, drawn anew for each token, adapter and step. The "
               "model's own product keeps all features."},
      {MODEL_KEY(lora.targets), .type = paths, .identity = true, .silent = true,
       .help = "Matrices that get adapters: wq, wk, wv, wo, w_gate, w_up, w_down; or Hugging Face's names (q_proj, self_attn.q_proj, "
               "layers.3.self_attn.q_proj); or patterns of tensors' names (\"layers.1?.attention.*\", \"experts.*\"). \"all-linear\" is "
               "all of them. [] is all seven of every layer, without experts, which must be named."},
      {MODEL_KEY(lora.modules_to_save), .type = paths, .identity = true, .silent = true,
       .help = "Modules that are trained whole beside the adapters and saved with them. Give the ends of their names, as in PEFT "
               "(\"lm_head\", \"embed_tokens\", \"norm\"), or patterns of tensors' names (\"head.*\")."},
      {MODEL_KEY(lora.scaling), .type = text, .identity = true, .silent = true,
       .help = "standard divides lora.alpha by the rank. rslora divides it by the rank's square root, which suits large ranks "
               "(arXiv:2312.03732)."},
      {MODEL_KEY(lora.init), .type = text, .unit = "path", .identity = true, .silent = true,
       .help = "Folder of a PEFT adapter that training starts from. run.init must be the model that it was made for, and its "
               "adapter_config.json must match this section. Empty: A is drawn from run.seed, and B is zero."},

      // [experts]
      {KEY(experts.capacity_factor), .type = real, .unit = "ratio", .limits = {.above = 0, .most = 1e6}, .zero = "dropless",
       .identity = true,
       .help = "Most tokens of a micro-batch that an expert takes, relative to an equal share. Choices beyond it are dropped and counted, "
               "the last tokens first. With mesh.tp or mesh.cp it applies to a rank's part of a micro-batch. dropless drops none. `tessera "
               "generate` never drops tokens."},

      // [reference]
      {KEY(reference.model), .type = text,
       .help = "A frozen model that runs beside the training model and computes its loss on the same batches, `reference_loss` of "
               "metrics.jsonl. \"start\": a copy of the weights that the run begins with. \"none\": there is no reference."},

      // [preference]
      {KEY(preference.objective), .type = paths, .identity = true, .silent = true,
       .help = "Loss of pairs of a chosen and a rejected text: dpo, robust, hinge, ipo, sigmoid_norm, apo_zero, apo_down, simpo or cpo. "
               "A list is their weighted sum, to which sft (the loss of chosen completions) may belong. []: the loss is that of "
               "tokens (docs/preferences.md)."},
      {KEY(preference.weights), .type = reals, .limits = {.above = 0, .most = 1e9}, .identity = true, .silent = true,
       .help = "With several objectives: the factor of each in their sum. []: 1 for each."},
      {KEY(preference.beta), .type = real, .limits = {.above = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "Scale of rewards. A larger one keeps the model nearer to the reference."},
      {KEY(preference.label_smoothing), .type = real, .limits = {.least = 0, .below = 0.5}, .identity = true, .silent = true,
       .help = "Share of pairs whose labels are taken to be wrong. Read by dpo (then called cDPO), robust, simpo and cpo."},
      {KEY(preference.gamma), .type = real, .limits = {.least = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "simpo's margin between the rewards of both texts. Its paper has gamma at about half of beta, and beta from 2 to 2.5."},
      {KEY(preference.alpha), .type = real, .limits = {.least = 0, .most = 1e6}, .identity = true, .silent = true,
       .help = "cpo's share of the loss of chosen completions."},
      {KEY(preference.reference), .type = text, .identity = true, .silent = true,
       .help = "Source of the reference's log-probabilities. \"adapter\": a forward pass of the model without its adapters, which "
               "needs lora.rank. \"copy\": a frozen copy of the model that the run begins with. \"file\": preference.reference_file. "
               "\"none\": for simpo, cpo and sft."},
      {KEY(preference.reference_file), .type = text, .unit = "path",
       .help = "File of log-probabilities that preference.reference = \"file\" reads."}};
}

}  // namespace tessera::schema
