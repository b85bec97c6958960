// THE table of deck keys. A new key is a field in deck.hpp and a row here.
#include "deck/schema.hpp"

#include <algorithm>

#include "base/limits.hpp"
#include "optimizer/texts/table.hpp"

namespace tessera {
namespace {

template <class F>
FieldRef field_of(F) {
  using T = std::remove_reference_t<std::invoke_result_t<F, Deck&>>;
  if constexpr (Worded<T>)
    return ModeField{.words = enum_words<T>,
                     .read = [](const Deck& d) { return word_of(F{}(const_cast<Deck&>(d))); },  // F only forms a reference
                     .write = [](Deck& d, std::string_view word) { F{}(d) = from_word<T>(word).value(); }};
  else
    return static_cast<T& (*)(Deck&)>(F{});
}

/// Puts the words of modes into their rows.
std::vector<Key> with_choices(std::vector<Key> keys) {
  for (Key& key : keys)
    if (const auto* mode = std::get_if<ModeField>(&key.field); mode && key.type == KeyType::text)
      std::ranges::copy_if(mode->words, std::back_inserter(key.choices),
                           [&](std::string_view word) { return word != "auto" || key.automatic == Auto::no; });
  return keys;
}

// The name of a key is the path of its field: the two cannot drift apart.
#define KEY(path) .name = #path, .field = field_of([](Deck& d) -> decltype((std::declval<Deck&>().path)) { return d.path; })

// A section of its own whose fields belong to the model's.
#define MODEL_KEY(path) \
  .name = #path, .field = field_of([](Deck& d) -> decltype((std::declval<Deck&>().model.path)) { return d.model.path; })

constexpr double max_dim = 1 << 24;

using enum KeyType;
using Refusals = std::vector<std::pair<std::string_view, std::string_view>>;

// Of transformers and DeepSpeed.
const Refusals other_schedules = {
    {"constant_with_warmup", "it is \"constant\" here, with learning_rate.warmup_steps or warmup_ratio"},
    {"warmup_stable_decay", "it is \"wsd\" here, with learning_rate.decay_steps"},
    {"cosine_with_min_lr", "it is \"cosine\" here, with learning_rate.min_ratio"},
    {"cosine_warmup_with_min_lr", "it is \"cosine\" here, with learning_rate.min_ratio"},
    {"warmuplr", "it is \"warmup_lr\" here, with learning_rate.warmup_steps, warmup_type and warmup_min_lr"},
    {"warmupdecaylr", "it is \"warmup_decay_lr\" here, with learning_rate.warmup_steps, warmup_type and warmup_min_lr"},
    {"warmupcosinelr", "it is \"warmup_cosine_lr\" here, with learning_rate.warmup_steps, warmup_type, warmup_min_ratio and min_ratio"},
    {"cosine_with_restarts", "restarts are not in this version; set \"cosine\""},
    {"polynomial", "powers other than 1 are not in this version, and with 1 it is \"linear\""},
    {"inverse_sqrt", "it is not in this version; set \"cosine\" or \"wsd\""},
    {"reduce_lr_on_plateau", "a schedule follows from the step alone; set \"cosine\" or \"wsd\""},
    {"greedy", "a schedule follows from the step alone; set \"cosine\" or \"wsd\""},
    {"onecycle", "it is \"one_cycle\" here, with the keys of [learning_rate.one_cycle]"},
    {"lrrangetest", "it is \"lr_range_test\" here, with the keys of [learning_rate.lr_range_test]"}};
const Refusals other_decays = {{"1-sqrt", "it is \"minus_sqrt\" here"}, {"sqrt", "it is \"minus_sqrt\" here"}};

const Refusals no_cpu = {{"cpu", "the host's memory is called \"host\" here"}};
const std::vector<Key> table = with_choices({
    // [run]
    {KEY(run.name), .type = text, .fallback = "\"auto\"", .automatic = Auto::resolved,
     .help = "Name of the run; auto takes the file name of the deck without its extension."},
    {KEY(run.output_dir), .type = text, .unit = "path", .fallback = "\"auto\"", .automatic = Auto::resolved,
     .help = "Folder for checkpoints and metrics, relative to the current directory; auto is runs/NAME."},
    {KEY(run.overwrite), .type = boolean, .fallback = "false",
     .help = "Where the output folder holds the run of another deck, or run.resume is never: moves that run aside (output_dir.old-N) and "
             "starts anew."},
    {KEY(run.resume), .type = text, .unit = "path", .fallback = "\"auto\"", .automatic = Auto::kept,
     .help = "auto goes on from the latest checkpoint of the output folder if there is one; never starts anew; newest-good goes on from "
             "the newest "
             "checkpoint that verifies; a path names a checkpoint to begin from while the output folder has none, or one of its own to go "
             "back to, "
             "once."},
    {KEY(run.init), .type = text, .unit = "path", .fallback = "\"\"", .identity = true, .silent = true,
     .help =
         "Folder of a Hugging Face model, relative to the current directory, whose weights a run begins with where it has no checkpoint "
         "to go on from; empty: weights are drawn from run.seed. Its config.json must say the deck's [model] (`tessera deck from-hf` "
         "prints that); it is not read again on a resume."},
    {KEY(run.steps), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12}, .fallback = "\"auto\"",
     .automatic = Auto::kept, .identity = true,
     .help = "Optimizer steps of the whole run; a resumed run goes on to the same total. auto, where run.epochs is given: those of so many "
             "passes."},
    {KEY(run.epochs), .type = real, .unit = "passes over the data", .limits = {.least = 0, .most = 1e6}, .fallback = "0.0",
     .identity = true, .silent = true,
     .help = "In the place of run.steps: so many passes. One pass is as many sequences as all files of data.train have together, so in a "
             "mixture a file may be passed over more or less often, by its weight; the last step is filled up. A start counts them, and "
             "the run's folder and its checkpoints hold the steps in their place; 0: run.steps says it."},
    {KEY(run.seed), .type = integer, .limits = {.least = 0}, .fallback = "1", .identity = true,
     .help = "Seed of the initial weights and of the order of the data."},
    {KEY(run.reproducible), .type = boolean, .fallback = "false", .identity = true,
     .help = "Makes every sum exact, so that the same deck gives the same bits on any number of ranks and at any ZeRO stage."},
    {KEY(run.device), .type = text, .fallback = "\"auto\"", .automatic = Auto::kept,
     .help =
         "Where tensors live and kernels run; a run with cuda needs a build with CUDA. auto takes cuda when a run of such a "
         "build starts and sees a GPU, else host. tessera plan looks for no GPU, in any build: auto plans for the host, cuda for a GPU."},
    {KEY(run.threads), .type = integer, .unit = "threads a rank", .limits = {.least = 0, .most = most_threads}, .fallback = "\"auto\"",
     .automatic = Auto::kept, .help = "Compute threads of each rank; auto shares the cores of a node among its ranks."},
    {KEY(run.lanes), .type = text, .fallback = "\"auto\"", .automatic = Auto::kept,
     .help = "threads runs communication lanes on threads of their own beside compute; inline runs every task in order on one thread."},
    {KEY(run.log_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12}, .fallback = "1",
     .help = "Steps between two progress lines; metrics.jsonl holds every step."},
    {KEY(run.breakdown_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
     .help =
         "Steps between two tables of where the time goes on rank 0: forward, backward, optimizer, each kind of collective, copies, disks, "
         "exposed and hidden, with bytes a second; 0: none. On the host every step is timed and a table has their means. On a GPU it is "
         "that of one step, which issues its tasks one by one where others may be one CUDA graph."},
    {KEY(run.trace), .type = counted, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
     .help =
         "Steps whose tasks are timed, as the log counts steps: one, 12, or several, \"3..5\". Each rank writes trace/step-N/rank-R.json "
         "into "
         "the output folder, and rank 0 joins all of them in trace/steps-N-M.json, on one clock, and prints a table; Perfetto opens both, "
         "scripts/plot_run draws one rank; 0: none. On a GPU such a step issues its tasks one by one, where others may be one CUDA graph: "
         "times of tasks are close to those in the graph, gaps between them are not."},
    {KEY(run.machine), .type = text, .unit = "path", .fallback = "\"\"", .silent = true,
     .help =
         "Machine profile (`tessera report --measure`, inputs/machines/*.toml) of what the run runs on: the joined file of run.trace then "
         "holds the step that the simulator predicts for rank 0 beside those that were measured; empty: no prediction."},

    // [model]
    {KEY(model.layers), .type = integer, .unit = "layers", .limits = {.least = 1, .most = 10000}, .identity = true,
     .help = "Number of transformer layers."},
    {KEY(model.width), .type = integer, .unit = "features", .limits = {.least = 1, .most = max_dim}, .identity = true,
     .help = "Width of the residual stream."},
    {KEY(model.heads), .type = integer, .unit = "heads", .limits = {.least = 1, .most = max_dim}, .identity = true,
     .help = "Query heads of attention."},
    {KEY(model.kv_heads), .type = integer, .unit = "heads", .limits = {.least = 1, .most = max_dim}, .fallback = "\"auto\"",
     .automatic = Auto::resolved, .identity = true, .help = "Key and value heads, a divisor of model.heads; auto is model.heads."},
    {KEY(model.head_dim), .type = integer, .unit = "features", .limits = {.least = 0, .most = largest_head_dim}, .fallback = "\"auto\"",
     .automatic = Auto::resolved, .identity = true, .help = "Features of one head, an even number; auto is model.width / model.heads."},
    {KEY(model.ff_width), .type = integer, .unit = "features", .limits = {.least = 1, .most = max_dim}, .identity = true,
     .help = "Inner width of the SwiGLU feed-forward block."},
    {KEY(model.vocab), .type = integer, .unit = "tokens", .limits = {.least = 1, .most = 2147483647}, .identity = true,
     .help = "Size of the vocabulary; every token id of the data is below it."},
    {KEY(model.tied), .type = boolean, .fallback = "false", .identity = true, .help = "Uses the embedding matrix as the output head too."},
    {KEY(model.qk_norm), .type = boolean, .fallback = "false", .identity = true,
     .help = "Normalises queries and keys of each head before the rotation."},
    {KEY(model.qkv_bias), .type = boolean, .fallback = "false", .identity = true,
     .help = "Adds a bias to the query, key and value projections."},
    {KEY(model.norm_eps), .type = real, .limits = {.above = 0, .below = 1}, .fallback = "1e-05", .identity = true,
     .help = "Epsilon of RMSNorm, inside the square root."},
    {KEY(model.init_std), .type = real, .limits = {.above = 0, .most = 10}, .fallback = "0.02", .identity = true,
     .help = "Standard deviation of the initial weights."},
    {KEY(model.rope_theta), .type = real, .limits = {.above = 1, .most = 1e12}, .fallback = "10000.0", .identity = true,
     .help = "Base of the rotary frequencies."},
    {KEY(model.rope_scaling), .type = text, .fallback = "\"none\"", .identity = true,
     .refused = {{"longrope", "LongRoPE scaling is not in this version; set \"none\", \"llama3\", \"linear\", \"dynamic\" or \"yarn\""}},
     .help = "Scaling of the rotary frequencies for long contexts, as Hugging Face's classes do it."},
    {KEY(model.rope_factor), .type = real, .unit = "ratio", .limits = {.least = 1, .most = 1e6}, .fallback = "8.0", .identity = true,
     .help = "Scaling: factor by which frequencies are slowed, with llama3 and yarn the low ones alone."},
    {KEY(model.rope_low_freq_factor), .type = real, .unit = "ratio", .limits = {.above = 0, .most = 1e6}, .fallback = "1.0",
     .identity = true,
     .help = "llama3 scaling: wavelengths longer than rope_original_context divided by this are slowed by the whole factor."},
    {KEY(model.rope_high_freq_factor), .type = real, .unit = "ratio", .limits = {.above = 0, .most = 1e6}, .fallback = "4.0",
     .identity = true, .help = "llama3 scaling: wavelengths shorter than rope_original_context divided by this are left as they are."},
    {KEY(model.rope_original_context), .type = integer, .unit = "tokens", .limits = {.least = 1, .most = max_dim}, .fallback = "8192",
     .identity = true, .help = "llama3, yarn and dynamic scaling: context length that the unscaled frequencies were made for."},
    {KEY(model.rope_beta_fast), .type = real, .unit = "turns", .limits = {.above = 0, .most = 1e6}, .fallback = "32.0", .identity = true,
     .silent = true, .help = "yarn scaling: waves that turn more often within rope_original_context are left as they are."},
    {KEY(model.rope_beta_slow), .type = real, .unit = "turns", .limits = {.above = 0, .most = 1e6}, .fallback = "1.0", .identity = true,
     .silent = true, .help = "yarn scaling: waves that turn less often are slowed by the whole factor."},
    {KEY(model.rope_attention_factor), .type = real, .unit = "ratio", .limits = {.least = 0, .most = 1e3}, .fallback = "0.0",
     .identity = true, .silent = true, .help = "yarn scaling: what cosines and sines are multiplied with; 0: 0.1 ln(rope_factor) + 1."},
    {KEY(model.max_context), .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim}, .fallback = "0",
     .help = "Context length that exports declare (max_position_embeddings); 0: batch.sequence_length."},

    {KEY(model.experts), .type = integer, .unit = "experts", .limits = {.least = 0, .most = 4096}, .fallback = "0", .identity = true,
     .help = "Experts of each layer, SwiGLU blocks of which a router gives each token some; 0: one feed-forward block takes every token."},
    {KEY(model.experts_per_token), .type = integer, .unit = "experts", .limits = {.least = 1, .most = 4096}, .fallback = "2",
     .identity = true, .help = "Experts that take a token: those of the largest router logits, of equal ones the first."},
    {KEY(model.expert_ff_width), .type = integer, .unit = "features", .limits = {.least = 0, .most = max_dim}, .fallback = "\"auto\"",
     .automatic = Auto::kept, .identity = true, .help = "Inner width of an expert; auto is model.ff_width."},
    {KEY(model.shared_ff_width), .type = integer, .unit = "features", .limits = {.least = 0, .most = max_dim}, .fallback = "0",
     .identity = true,
     .help = "Inner width of an expert that takes every token beside those of the router, weighed by a gate of its own (Qwen-MoE); 0: "
             "none."},
    {KEY(model.normalize_top_k), .type = boolean, .fallback = "true", .identity = true,
     .help = "Divides the weights of a token's experts by their sum (Mixtral); false leaves the probabilities over all experts."},
    {KEY(model.router_aux_loss), .type = real, .limits = {.least = 0, .most = 1000}, .fallback = "0.0", .identity = true,
     .help = "Coefficient of the loss that balances experts: for each layer, experts x the sum over them of their share of choices times "
             "their mean probability, 1 where all have the same; of each micro-batch, averaged over those of a step. 0.01 is usual."},
    {KEY(model.router_z_loss), .type = real, .limits = {.least = 0, .most = 1000}, .fallback = "0.0", .identity = true,
     .help = "Coefficient of the mean square of the log-sum-exp of router logits, for each layer. 0.001 is usual."},
    {KEY(model.router_balance), .type = text, .fallback = "\"loss\"", .identity = true,
     .help =
         "What balances experts: \"loss\" model.router_aux_loss alone; \"bias\" a bias of each expert, which joins its probability where a "
         "token's experts are chosen and not in what they count for, and which each step moves by its load (arXiv:2408.15664, "
         "DeepSeek-V3). model.router_aux_loss counts beside it as it says."},
    {KEY(model.router_bias_rate), .type = real, .limits = {.above = 0, .most = 1}, .fallback = "0.001", .identity = true,
     .help = "With model.router_balance = \"bias\": what a step adds to the bias of an expert that had less than the mean of the step's "
             "choices, and takes from one that had more."},
    {KEY(model.freeze), .type = texts, .fallback = "[]", .identity = true, .silent = true,
     .help =
         "Patterns (`*` any run of characters, `?` any one) of tensors that training leaves as they are, by the names that `tessera "
         "inspect` shows, for example [\"embedding.*\", \"layers.0.*\"]. They lie in the compute type alone and have no gradient, moments "
         "or fp32 copy. Tensors that one product makes are frozen together. A pattern of no tensor is refused."},

    // [lora]
    {MODEL_KEY(lora.rank), .type = integer, .limits = {.least = 0, .most = 4096}, .fallback = "0", .identity = true, .silent = true,
     .help =
         "Rank of low-rank adapters (LoRA): two small matrices beside each of lora.targets, which alone are trained. All else of the model "
         "lies in the compute type, without gradients, moments or fp32 copy. 0: none."},
    {MODEL_KEY(lora.alpha), .type = real, .limits = {.above = 0, .most = 1e6}, .fallback = "16.0", .identity = true, .silent = true,
     .help = "What adapters add is multiplied with lora.alpha / lora.rank."},
    {MODEL_KEY(lora.targets), .type = texts, .fallback = "[]", .identity = true, .silent = true,
     .help =
         "Matrices that have adapters: wq, wk, wv, wo, w_gate, w_up, w_down, or as Hugging Face calls them (q_proj), or patterns of "
         "tensors' names (\"layers.1?.attention.*\", \"experts.*\"); [] is all seven of every layer, but for experts, which are named."},
    {MODEL_KEY(lora.scaling), .type = text, .fallback = "\"standard\"", .identity = true, .silent = true,
     .help = "standard divides lora.alpha by the rank, rslora by its square root, which suits large ranks (arXiv:2312.03732)."},
    {MODEL_KEY(lora.init), .type = text, .unit = "path", .fallback = "\"\"", .identity = true, .silent = true,
     .help = "Folder of an adapter as PEFT writes it, which training begins with, beside the model of run.init that it was made for; its "
             "adapter_config.json must say this section. Empty: A is drawn from run.seed, and B is zero."},

    // [experts]
    {KEY(experts.capacity_factor), .type = real, .unit = "ratio", .limits = {.above = 0, .most = 1e6}, .zero = "dropless",
     .fallback = "\"dropless\"", .identity = true,
     .help = "Tokens that an expert takes of a micro-batch at most, over those that it would have if all had the same; choices beyond are "
             "dropped and counted, the last tokens first. With mesh.tp or mesh.cp of a rank's part of a micro-batch. dropless drops none. "
             "Texts of generate are never dropped."},

    // [batch]
    {KEY(batch.global), .type = integer, .unit = "sequences", .limits = {.least = 1, .most = 1e9}, .identity = true,
     .help = "Sequences of one optimizer step over all ranks; each rank runs global / (micro x ranks) micro-batches, rounded up."},
    {KEY(batch.micro), .type = integer, .unit = "sequences", .limits = {.least = 1, .most = 1e6}, .identity = true,
     .help = "Sequences that a rank passes through the model at once."},
    {KEY(batch.sequence_length), .type = integer, .unit = "tokens", .limits = {.least = 1, .most = max_dim}, .identity = true,
     .help = "Tokens of a sequence."},
    {KEY(batch.ramp), .type = phases, .fallback = "[]", .identity = true, .silent = true,
     .help = "Phases at the begin of a run, a table [[batch.ramp]] each, in order: `until_step` (the optimizer steps that are done as the "
             "phase ends), and the phase's `global` or `sequence_length` or both. Then global and sequence_length of [batch] hold. A phase "
             "of shorter sequences cuts each sample of batch.sequence_length tokens into equal sequences of one step (docs/ramps.md)."},

    // [data]
    {KEY(data.train), .type = paths, .unit = "path",
     .help =
         "Training tokens, relative to the current directory: .h5 as `tessera tokenize` writes it, or .bin of uint16. A list of files is "
         "a mixture by data.weights."},
    {KEY(data.weights), .type = reals, .limits = {.above = 0, .most = 1e9}, .fallback = "[]", .identity = true, .silent = true,
     .help =
         "With several files in data.train: how many of the run's sequences each gives, relative to the others, for example [0.7, 0.3]. "
         "After any number of sequences each file has given its share, but for less than one."},
    {KEY(data.epochs), .type = reals, .unit = "passes over a file", .limits = {.least = 0, .most = 1e9}, .fallback = "[]",
     .help = "Of each file in data.train: how often the run may pass over it at most, but for the last step, which is filled up; 0: as "
             "often as its weight asks for. A start at which run.steps or run.epochs asks for more is refused. How long the run is, "
             "run.epochs says."},
    {KEY(data.validation), .type = text, .unit = "path", .fallback = "\"\"",
     .help = "Validation tokens, relative to the current directory; empty: none."},
    {KEY(data.chat_template), .type = text, .unit = "name or path", .fallback = "\"\"",
     .help =
         "Chat template that the run keeps beside its tokenizer, for `tessera generate --chat` and exports: chatml, llama3, alpaca, plain, "
         "or a file; the one that `tessera tokenize --chat-template` was given. Empty: the model's own."},
    {KEY(data.tokenizer), .type = text, .unit = "folder or digest", .fallback = "\"\"",
     .help = "Tokenizer that the token files must be of: a folder with a tokenizer.json, which the run keeps, or the digest of one, as "
             "token files name it (`tokenizer.xxh3`). Empty: that of run.init, of the run's folder or of the checkpoint that it begins "
             "with. Checkpoints carry the digest in its place."},
    {KEY(data.bin_ids), .type = text, .fallback = "\"auto\"",
     .help = "Type of the ids in token files without a header (.bin); others say it themselves. auto is uint16, and refuses files whose "
             "bytes look like wider ids, floats or text."},
    {KEY(data.document_mask), .type = boolean, .fallback = "false", .identity = true, .silent = true,
     .help =
         "Keeps the documents of a sequence apart: attention sees a token's own document alone, positions count from its begin, and the "
         "token that a document ends with has no target. Attention then takes time by the squares of documents, not of the sequence. "
         "Token files must say where their documents begin, as `tessera tokenize` writes them."},
    {KEY(data.packing), .type = text, .fallback = "\"concatenate\"", .identity = true, .silent = true,
     .help =
         "How documents become sequences. concatenate: sequences are cut out of the file's tokens as they follow each other. documents: "
         "sequences hold whole documents, as many as fit (best fit, in an order of run.seed); what stays empty is padding that counts in "
         "no loss. It asks for data.document_mask = true."},
    {KEY(data.too_long), .type = text, .fallback = "\"refuse\"", .identity = true, .silent = true,
     .help = "With data.packing = \"documents\", what becomes of a document of more than batch.sequence_length + 1 tokens: refuse ends the "
             "start and names it, truncate takes its first tokens, split makes documents of its parts."},

    // [optimizer]
    {KEY(optimizer.type), .type = text, .choices = optimizer_names(), .fallback = "\"adamw\"", .identity = true,
     .refused = refused_optimizers(), .help = "Update rule; weight decay applies to matrices only."},
    {KEY(optimizer.learning_rate), .type = real, .limits = {.above = 0, .most = 1000}, .identity = true,
     .help = "Peak learning rate, reached at the end of the warmup."},
    {KEY(optimizer.beta1), .type = real, .limits = {.least = 0, .below = 1}, .fallback = "0.9", .identity = true,
     .help = "Decay of the mean of the gradients."},
    {KEY(optimizer.beta2), .type = real, .limits = {.least = 0, .below = 1}, .fallback = "0.95", .identity = true,
     .help = "Decay of the mean of the squared gradients, or of the one mean that an optimizer keeps."},
    {KEY(optimizer.eps), .type = real, .limits = {.above = 0, .most = 1}, .fallback = "1e-08", .identity = true,
     .help = "Added to the square root of the second moment."},
    {KEY(optimizer.bias_correction), .type = boolean, .fallback = "true", .identity = true, .silent = true,
     .help = "Moments that begin at 0 count by what they lack in the first updates: the first by 1 / (1 - beta1^n) in update n, the second "
             "by 1 / (1 - beta2^n). false takes them as they are."},
    {KEY(optimizer.momentum), .type = real, .limits = {.least = 0, .below = 1}, .fallback = "0.0", .identity = true, .silent = true,
     .help = "What of a step's direction goes into the next one's; 0: nothing, and no state is kept."},
    {KEY(optimizer.nesterov), .type = boolean, .fallback = "false", .identity = true, .silent = true,
     .help = "Nesterov's momentum: a step looks ahead by the momentum that it leaves."},
    {KEY(optimizer.min_trust_ratio), .type = real, .limits = {.least = 0, .most = 1e6}, .fallback = "0.01", .identity = true,
     .silent = true,
     .help = "Least ratio of a tensor's norm to its update's by which the update is multiplied; 1 stands where a norm is 0."},
    {KEY(optimizer.max_trust_ratio), .type = real, .limits = {.above = 0, .most = 1e6}, .fallback = "10.0", .identity = true,
     .silent = true, .help = "Largest such ratio."},
    {KEY(optimizer.decay_rate), .type = real, .limits = {.above = 0, .most = 10}, .fallback = "0.8", .identity = true, .silent = true,
     .help = "In update t the mean of squares decays by 1 - t^-decay_rate, in the place of a beta2."},
    {KEY(optimizer.update_clipping), .type = real, .limits = {.above = 0, .most = 1e6}, .fallback = "1.0", .identity = true, .silent = true,
     .help = "Largest root of the mean square of a tensor's update before the learning rate, to which it is scaled down."},
    {KEY(optimizer.newton_schulz), .type = text, .fallback = "\"quintic\"", .identity = true, .silent = true,
     .help = "Polynomials of the five steps that make a momentum orthogonal: quintic (Megatron-LM's default), simple, the same five times "
             "(Jordan's Muon, DeepSpeed's), or polar_express (nanochat's)."},
    {KEY(optimizer.muon_scale), .type = text, .fallback = "\"match_rms_adamw\"", .identity = true, .silent = true,
     .help = "What an orthogonal matrix is multiplied by, beside the learning rate: match_rms_adamw 0.2 sqrt(max(rows, columns)), so that "
             "matrices move as far as AdamW would have them and one learning rate serves both (Moonlight), or original sqrt(max(1, rows / "
             "columns)) (Jordan's Muon, DeepSpeed's)."},
    {KEY(optimizer.freeze_step), .type = integer, .unit = "updates", .limits = {.least = 1, .most = 1e12}, .fallback = "100000",
     .identity = true, .silent = true,
     .help =
         "Updates of 1-bit Adam's warmup, which are plain Adam's without bias correction. Then the mean of squares is frozen, gradients "
         "stay with their ranks, and momenta meet as a bit an element."},
    {KEY(optimizer.moments), .type = text, .choices = {"fp32", "bf16"}, .fallback = "\"fp32\"", .identity = true, .silent = true,
     .help = "Type of what the optimizer keeps of each parameter beside its fp32 weight: with bf16 a moment takes 2 bytes in place of 4. "
             "Checkpoints hold fp32 of either."},
    {KEY(optimizer.moments_rounding), .type = text, .fallback = "\"stochastic\"", .identity = true, .silent = true,
     .help = "With optimizer.moments = \"bf16\": stochastic rounds a moment up or down by chance, the nearer of two values more often, so "
             "that small changes add up over steps; nearest loses those below 1/256 of a moment, as a second moment's are with a beta2 "
             "close to 1. The chance is drawn from value, gradient and step, so that bits do not depend on the layout."},
    {KEY(optimizer.weight_decay), .type = real, .limits = {.least = 0, .most = 1000}, .fallback = "0.1", .identity = true,
     .help = "Weight decay of matrices, times the learning rate; biases and norm weights have none. adam and sgd have it in the "
             "gradient, as L2 regularisation; the others decouple it."},
    {KEY(optimizer.gradient_clipping), .type = real, .unit = "norm", .limits = {.least = 0, .most = 1e12}, .fallback = "1.0",
     .identity = true, .help = "Largest norm of the whole gradient, to which it is scaled down; 0: no clipping."},
    {KEY(optimizer.groups), .type = groups, .fallback = "[]", .identity = true, .silent = true,
     .help = "Tensors whose update differs, a table [[optimizer.groups]] each: `tensors` (patterns of names, as in model.freeze), and "
             "any of `learning_rate` (the peak; the schedule scales it as it does optimizer.learning_rate), `weight_decay` (of vectors "
             "too) and `type`, another optimizer, with any of the keys of [optimizer] that it reads (else its defaults, but for moments, "
             "which are "
             "then those of [optimizer]). The first group that has a tensor counts. A pattern of no tensor that is trained is refused."},

    // [learning_rate]
    {KEY(learning_rate.schedule), .type = text, .fallback = "\"cosine\"", .identity = true, .refused = other_schedules,
     .help =
         "The learning rate of each update. cosine, linear, constant and wsd share a warmup that reaches the peak on its last step, and "
         "wsd is constant until its last decay_steps. warmup_lr, warmup_decay_lr, warmup_cosine_lr, one_cycle and lr_range_test are "
         "DeepSpeed's classes with their exact numbers (docs/schedules.md). A key of another schedule is refused."},
    {KEY(learning_rate.warmup_steps), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
     .identity = true,
     .help = "Steps of warmup; the last one has the peak. DeepSpeed's take two at least, and have the peak one step later (log) or two "
             "(linear)."},
    {KEY(learning_rate.warmup_ratio), .type = real, .unit = "ratio", .limits = {.least = 0, .most = 1}, .fallback = "0.0", .identity = true,
     .silent = true,
     .help = "In the place of warmup_steps: the warmup as a share of run.steps, rounded up. The run's folder holds the steps in its place, "
             "so a run that is made longer keeps its warmup where warmup_steps is given."},
    {KEY(learning_rate.warmup_type), .type = text, .fallback = "\"linear\"", .identity = true,
     .help = "Rise of the warmup. linear: step i of warmup_steps, counted from 1, has i / warmup_steps of the peak; log: log(i) / "
             "log(warmup_steps), which begins at 0. DeepSpeed's warmups: (i - 2) / warmup_steps and log(i - 1) / log(warmup_steps), from "
             "the second step on."},
    {KEY(learning_rate.warmup_min_lr), .type = real, .limits = {.least = 0, .most = 1000}, .fallback = "0.0", .identity = true,
     .silent = true,
     .help = "warmup_lr and warmup_decay_lr: the learning rate that the warmup begins with, and that warmup_decay_lr ends at."},
    {KEY(learning_rate.warmup_min_ratio), .type = real, .unit = "ratio", .limits = {.least = 0, .most = 1}, .fallback = "0.0",
     .identity = true, .silent = true,
     .help =
         "warmup_cosine_lr: the share of the peak that the warmup begins with, on the second update; the first has a learning rate of 0."},
    {KEY(learning_rate.decay_steps), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
     .identity = true, .help = "wsd schedule: steps of the decay at the end of the run."},
    {KEY(learning_rate.decay_type), .type = text, .fallback = "\"linear\"", .identity = true, .silent = true, .refused = other_decays,
     .help = "wsd schedule: what is left of the way from the peak to the floor at a share p of the decay. linear: 1 - p; cosine: (1 + "
             "cos(pi p)) / 2; "
             "exponential: 2 x 0.5^p - 1; minus_sqrt: 1 - sqrt(p). p is 1 on the last step."},
    {KEY(learning_rate.min_ratio), .type = real, .unit = "ratio", .limits = {.least = 0, .most = 1}, .fallback = "0.1", .identity = true,
     .help = "cosine, linear, wsd and warmup_cosine_lr: last learning rate as a share of the peak."},

    // [learning_rate.one_cycle]
    {KEY(learning_rate.one_cycle.min_lr), .type = real, .limits = {.least = 0, .most = 1000}, .fallback = "0.0", .identity = true,
     .silent = true, .help = "The learning rate that the cycle begins and ends with; its largest is optimizer.learning_rate."},
    {KEY(learning_rate.one_cycle.first_step_size), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12},
     .fallback = "2000", .identity = true, .silent = true, .help = "Updates in which the learning rate rises, and the momentum falls."},
    {KEY(learning_rate.one_cycle.second_step_size), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
     .fallback = "2000", .identity = true, .silent = true,
     .help = "Updates in which they go back. DeepSpeed takes first_step_size where it is not given."},
    {KEY(learning_rate.one_cycle.first_stair_count), .type = integer, .unit = "stairs", .limits = {.least = 0, .most = 1e12},
     .fallback = "0", .identity = true, .silent = true, .help = "Stairs of the rise; 0: a line."},
    {KEY(learning_rate.one_cycle.second_stair_count), .type = integer, .unit = "stairs", .limits = {.least = 0, .most = 1e12},
     .fallback = "0", .identity = true, .silent = true,
     .help = "Stairs of the way back; 0: a line. DeepSpeed takes first_stair_count where it is not given."},
    {KEY(learning_rate.one_cycle.decay_step_size), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12},
     .fallback = "0", .identity = true, .silent = true,
     .help = "Updates after the cycle that count as one of the next two rates; 0: min_lr and max_mom stay."},
    {KEY(learning_rate.one_cycle.decay_lr_rate), .type = real, .limits = {.least = 0, .most = 1e12}, .fallback = "0.0", .identity = true,
     .silent = true, .help = "After the cycle: n updates divide min_lr by 1 + decay_lr_rate x n / decay_step_size."},
    {KEY(learning_rate.one_cycle.cycle_momentum), .type = boolean, .fallback = "true", .identity = true, .silent = true,
     .help = "The momentum, beta1, goes the other way than the learning rate, and beta2 is 0.99, in the place of optimizer.beta1 and "
             "beta2. Bias "
             "corrections take the update's own beta, 1 - beta^n, as DeepSpeed's Adam does. false leaves the optimizer's."},
    {KEY(learning_rate.one_cycle.min_mom), .type = real, .limits = {.least = 0, .below = 1}, .fallback = "0.8", .identity = true,
     .silent = true, .help = "Momentum at the largest learning rate, and of the first update."},
    {KEY(learning_rate.one_cycle.max_mom), .type = real, .limits = {.least = 0, .below = 1}, .fallback = "0.9", .identity = true,
     .silent = true, .help = "Momentum at the begin and the end of the cycle."},
    {KEY(learning_rate.one_cycle.decay_mom_rate), .type = real, .limits = {.least = 0, .most = 1e12}, .fallback = "0.0", .identity = true,
     .silent = true,
     .help = "After the cycle: n updates multiply max_mom with 1 + decay_mom_rate x n / decay_step_size, which stays below 1."},

    // [learning_rate.lr_range_test]
    {KEY(learning_rate.lr_range_test.step_size), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12},
     .fallback = "2000", .identity = true, .silent = true,
     .help = "Update n, from 0, has optimizer.learning_rate x (1 + step_rate x n / step_size)."},
    {KEY(learning_rate.lr_range_test.step_rate), .type = real, .limits = {.least = 0, .most = 1e12}, .fallback = "1.0", .identity = true,
     .silent = true, .help = "What step_size updates add, in learning rates of the begin."},
    {KEY(learning_rate.lr_range_test.staircase), .type = boolean, .fallback = "false", .identity = true, .silent = true,
     .help = "Takes n / step_size rounded down."},

    // [precision]
    {KEY(precision.compute), .type = text, .choices = {"fp32", "bf16", "fp16"}, .fallback = "\"bf16\"", .identity = true,
     .refused = {{"fp8", "products alone are in fp8; set \"bf16\" and precision.fp8"}},
     .help = "Type of weights and activations in forward and backward; master weights and moments are fp32. fp16 scales the loss by "
             "[precision.loss_scale]; its range is small, so prefer bf16 where the GPU has it."},
    {KEY(precision.gradients), .type = text, .choices = {"fp32", "bf16"}, .fallback = "\"fp32\"",
     .help = "Type of a step's sums of gradients. bf16 takes 2 bytes a parameter in place of 4 (8 with run.reproducible) and needs one "
             "micro-batch a rank, whose gradient is made in fp32, rounded, and reduced in half as many bytes. With run.reproducible "
             "exact integers are reduced as ever, and their sum alone is rounded. A resume may change it."},
    {KEY(precision.fp8), .type = text, .fallback = "\"none\"", .identity = true, .silent = true,
     .help = "Products of linear layers, forward and backward, of codes of 8 bits and their scales: each operand is rounded to them where "
             "it is multiplied, and sums are fp32. tensorwise: a scale a matrix, from its largest magnitude; "
             "tensorwise_delayed: from the largest of the fp8_history steps before, so that a tensor is read once; rowwise: one for each "
             "row of an operand along which a product sums; these have weights and activations in E4M3, gradients in E5M2. blockwise "
             "(DeepSeek-V3): all in E4M3, a scale that is a power of two for 128 values of activations and gradients and for 128 x 128 of "
             "weights. Weights, masters, moments and what is kept for the backward pass stay as they are. On the host fp8 is emulated, "
             "with the numbers of its definition; a GPU needs compute capability 8.9, for rowwise 9.0, and has no "
             "blockwise. With precision.compute = \"bf16\", not with experts."},
    {KEY(precision.fp8_skip), .type = texts, .fallback = "[\"head\", \"embedding\"]", .identity = true, .silent = true,
     .help = "With precision.fp8: patterns (as in model.freeze) of tensors whose products stay in the compute type. A pattern also "
             "stands for all names that begin with it and a dot: \"head\" is head.weight. Of a model with tied embeddings the head's "
             "product reads embedding.weight. Tensors of one product are skipped together. A pattern of no tensor is refused."},
    {KEY(precision.fp8_history), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 65536}, .fallback = "1024",
     .identity = true, .silent = true,
     .help = "With precision.fp8 = \"tensorwise_delayed\": a scale is that of the largest magnitude of so many steps before. Transformer "
             "Engine's amax_history_len. Checkpoints keep the histories; a resume may not change it."},
    {KEY(precision.fp8_margin), .type = integer, .unit = "powers of 2", .limits = {.least = 0, .most = 16}, .fallback = "0",
     .identity = true, .silent = true,
     .help = "With precision.fp8 = \"tensorwise_delayed\": room that a scale leaves above that magnitude. Codes beyond saturate."},

    // [precision.loss_scale]
    {KEY(precision.loss_scale.initial_power), .type = integer, .unit = "power of 2", .limits = {.least = 0, .most = 40}, .fallback = "16",
     .identity = true, .silent = true,
     .help = "With precision.compute = \"fp16\": the scale of the loss that a run begins with is 2 to this power. An update whose "
             "gradients overflow is skipped and the scale halves; the log says so."},
    {KEY(precision.loss_scale.window), .type = integer, .unit = "optimizer steps", .limits = {.least = 1, .most = 1e12}, .fallback = "1000",
     .identity = true, .silent = true, .help = "Steps without an overflow after which the scale doubles."},
    {KEY(precision.loss_scale.hysteresis), .type = integer, .unit = "overflows", .limits = {.least = 1, .most = 1e6}, .fallback = "2",
     .identity = true, .silent = true,
     .help = "Overflows until the scale halves: the first ones are skipped alone. They count until the scale doubles."},
    {KEY(precision.loss_scale.consecutive_hysteresis), .type = boolean, .fallback = "false", .identity = true, .silent = true,
     .help = "Only overflows in a row count: a step without one refills precision.loss_scale.hysteresis."},
    {KEY(precision.loss_scale.minimum), .type = real, .limits = {.above = 0, .most = 1e12}, .fallback = "1.0", .identity = true,
     .silent = true, .help = "Lowest scale, a power of 2. Gradients that overflow there end the run with status 8 and what to do."},
    {KEY(precision.loss_scale.fixed), .type = real, .limits = {.least = 0, .most = 1e12}, .fallback = "0.0", .identity = true,
     .silent = true,
     .help = "A scale that neither falls nor rises, a power of 2; hysteresis overflows in a row end the run. 0: the scale moves."},

    // [zero]
    {KEY(zero.stage), .type = integer, .limits = {.least = 0, .most = 3}, .fallback = "0",
     .beyond = "ZeRO has stages 0 to 3: 0 shards nothing, 1 the optimizer state, 2 also the gradients, 3 also the parameters",
     .help = "What is sharded over ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters."},
    {KEY(zero.overlap_comm), .type = toggle, .fallback = "\"auto\"", .automatic = Auto::kept,
     .help =
         "Runs gathers and reductions beside compute; auto does so on GPUs and where a rank has a thread to spare. On GPUs, or with true, "
         "a unit's gradient keeps its memory until that of the next is complete, so that the backward pass waits for no reduction; "
         "false saves that memory."},
    {KEY(zero.contiguous_gradients), .type = boolean, .fallback = "true",
     .refused = {{"false", "gradients always stand in one contiguous buffer a unit; leave it at true"}},
     .help = "Gradients stand in contiguous buffers; always so."},
    {KEY(zero.reduce_scatter), .type = boolean, .fallback = "true",
     .refused = {{"false",
                  "stages 1, 2 and 3 always reduce-scatter gradients, all-reduce in its place is not in this version; leave it at true"}},
     .help = "Sharded gradients are summed by reduce-scatter; always so."},
    {KEY(zero.round_robin_gradients), .type = boolean, .fallback = "false",
     .refused = {{"true", "every rank owns one contiguous slice of each unit, there is nothing to deal out in turns; leave it at false"}},
     .help = "Not in this version: shards are contiguous slices of units."},
    {KEY(zero.reduce_bucket_size), .type = elements, .unit = "elements", .limits = {.least = 1, .most = 1e18}, .fallback = "500000000",
     .automatic = Auto::resolved,
     .help = "Gradient elements that are reduced together at most; auto is width squared. On GPUs at least 2^31: shards travel whole."},
    {KEY(zero.allgather_bucket_size), .type = elements, .unit = "elements", .limits = {.least = 1, .most = 1e18}, .fallback = "500000000",
     .help = "Parameter elements that are gathered together after the update at most, stages 1 and 2. On GPUs at least 2^31: shards "
             "travel whole."},
    {KEY(zero.prefetch_bucket_size), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18}, .fallback = "\"auto\"",
     .automatic = Auto::resolved,
     .help = "Stage 3: parameter elements that may be gathered ahead of their use, and at least what the next pass needs; auto is the "
             "largest unit of the model; 0: no prefetch."},
    {KEY(zero.param_persistence_threshold), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18},
     .fallback = "100000", .automatic = Auto::resolved,
     .help = "Stage 3: parameters with at most so many elements stay whole on every rank; auto is 10 x width."},
    {KEY(zero.max_live_parameters), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18}, .fallback = "1000000000",
     .help =
         "Stage 3: gathered parameter elements that a rank may hold at one time. What a pass needs is always held, and with prefetch what "
         "the next one needs beside it."},
    {KEY(zero.max_reuse_distance), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18}, .fallback = "1000000000",
     .help = "Stage 3: gathered parameters stay if they are used again within this many parameter elements."},
    {KEY(zero.sub_group_size), .type = elements, .unit = "elements", .limits = {.least = 1, .most = 1e18}, .fallback = "1000000000",
     .help = "Elements of a shard that the optimizer updates in one task at most."},
    {KEY(zero.hpz_partition_size), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1e7}, .fallback = "1",
     .help =
         "Stage 3: ranks that hold a compute copy between them, of a node for example (ZeRO++ hpZ). Gathers stay among them, and updated "
         "shards come from the other groups once a step; 1: all ranks hold one. A multiple of mesh.cp x mesh.ep."},
    {KEY(zero.quantized_weights), .type = boolean, .fallback = "false", .identity = true, .silent = true,
     .help = "Stage 3: compute copies are blocks of 256 codes of 8 bits and a scale, made of the master weights at each update (ZeRO++ "
             "qwZ). Gathers move them, and every rank multiplies by what it decodes. Small parameters "
             "(param_persistence_threshold) stay as they are."},
    {KEY(zero.quantized_gradients), .type = boolean, .fallback = "false", .identity = true, .silent = true,
     .help = "Stages 2 and 3, not in reproducible mode: gradients of a micro-batch travel to their owners as blocks of 256 codes of 4 bits "
             "and a scale, whole units at a time (ZeRO++ qgZ). With hpz_partition_size they meet in its groups first, in 8 bits, and cross "
             "groups as sums. Small parameters meet in fp32."},
    {KEY(zero.error_feedback.enabled), .type = boolean, .fallback = "false", .identity = true, .silent = true,
     .help =
         "With quantized_gradients: each rank keeps what rounding took from the gradients that it sent, and adds it to the next that it "
         "sends (LoCo). That takes 1.02 bytes a parameter on every rank. No checkpoint holds it: after a resume it begins at zero."},
    {KEY(zero.error_feedback.beta), .type = real, .limits = {.least = 0, .below = 1}, .fallback = "0.8", .identity = true, .silent = true,
     .help = "Share of an error that stays from one gradient to the next; the rest is what the last one left. 0: that alone."},
    {KEY(zero.error_feedback.reset_interval), .type = integer, .unit = "updates", .limits = {.least = 1, .most = 1e12}, .fallback = "1024",
     .identity = true, .silent = true, .help = "Updates after which errors begin at zero again."},
    {KEY(zero.offload_optimizer.device), .type = text, .fallback = "\"none\"", .refused = no_cpu,
     .help = "Where master weights and moments lie when not with the kernels: host, or nvme, from where pieces pass through the host. Its "
             "cores then run the optimizer (stages 1 to 3), and the gradients that it reads lie on the host. No bit of a run in "
             "reproducible mode depends on it."},
    {KEY(zero.offload_optimizer.ratio), .type = real, .limits = {.above = 0, .most = 1}, .fallback = "1.0",
     .help = "With offload_optimizer: share of the parameters whose optimizer state leaves the kernels' memory, the last layers first, "
             "whose gradients are there first; the rest is updated by the kernels, unit by unit."},
    {KEY(zero.offload_optimizer.nvme_path), .type = text, .unit = "path", .fallback = "\"\"",
     .help = "With nvme: a folder on a local disk; several, joined by colons, are written in turn. Each rank makes a file there that "
             "nobody else can read and that is gone when the process is."},
    {KEY(zero.offload_optimizer.buffer_count), .type = integer, .limits = {.least = 2, .most = 64}, .fallback = "4",
     .help = "With offload_optimizer: pieces that may be on their way between the memories at a time, of at most zero.sub_group_size "
             "elements and 4194304."},
    {KEY(zero.offload_optimizer.pin_memory), .type = boolean, .fallback = "true",
     .help = "With offload_optimizer on a GPU: what is copied to and from it lies in pinned memory, which copies beside other work need."},
    {KEY(zero.offload_optimizer.pipeline_read), .type = boolean, .fallback = "true",
     .help = "With nvme: the next piece is read while one is updated; false reads it in between."},
    {KEY(zero.offload_optimizer.pipeline_write), .type = boolean, .fallback = "true",
     .help = "With nvme: a piece is written while the next is updated; false writes it in between."},
    {KEY(zero.offload_optimizer.fast_init), .type = boolean, .fallback = "true",
     .help = "With nvme: moments of a new run are zeros that need not be written; false writes them, so that a disk shows its faults "
             "before the first step."},
    {KEY(zero.offload_param.device), .type = text, .fallback = "\"none\"", .refused = no_cpu,
     .help = "Where the shards of the parameters that kernels read lie when not with the kernels: host or nvme, from where each comes up "
             "for its gathers (stage 3, beside offload_optimizer). Small tensors (zero.param_persistence_threshold) stay. No bit of a run "
             "depends on it."},
    {KEY(zero.offload_param.nvme_path), .type = text, .unit = "path", .fallback = "\"\"",
     .help = "With nvme: folders, as for offload_optimizer, whose own serve where this is empty."},
    {KEY(zero.offload_param.max_in_cpu), .type = elements, .unit = "elements", .limits = {.least = 0, .most = 1e18}, .fallback = "0",
     .help = "With nvme: elements of a rank's shards that stay in host memory, the first units."},
    {KEY(zero.offload_param.pin_memory), .type = boolean, .fallback = "true",
     .help = "With offload_param on a GPU: the shards lie in pinned memory, which copies beside other work need."},

    // [activation]
    {KEY(activation.recompute), .type = text, .fallback = "\"none\"", .automatic = Auto::kept,
     .help =
         "What the backward pass makes again and the forward pass need not keep. selective: the half of the bytes that costs the fewest "
         "FLOPs; full: all but the residual stream that enters a layer; auto: the fewest FLOPs with which the plan fits memory.device, or "
         "what the ranks have, said at the start. No bit of a run depends on it."},
    {KEY(activation.every), .type = integer, .unit = "layers", .limits = {.least = 1, .most = 100000}, .fallback = "1",
     .help = "With recompute = \"full\": layers from one kept stream to the next."},
    {KEY(activation.keep), .type = texts, .fallback = "[]",
     .help = "What recompute does not drop: values of a layer, for example \"attention.context\", or kinds of segments (\"attention\", "
             "\"mlp\"), "
             "which stand for all that recompute = \"none\" keeps of them. A name that is none is refused with the list of all."},
    {KEY(activation.offload), .type = text, .fallback = "\"none\"", .refused = no_cpu,
     .help = "Where the residual streams that the backward pass reads wait for it: none leaves them with the kernels; host and nvme (the "
             "folders of zero.offload_optimizer.nvme_path) take them from there, two passes before they are used. No bit depends on it."},

    // [mesh]
    {KEY(mesh.dp), .type = integer, .unit = "ranks", .limits = {.least = 0, .most = 1e7}, .fallback = "\"auto\"", .automatic = Auto::kept,
     .help = "Data-parallel ranks, which divide the batch; auto is what the other axes leave of the launch."},
    {KEY(mesh.replicate), .type = integer, .unit = "groups", .limits = {.least = 1, .most = 1e7}, .fallback = "1",
     .help =
         "Groups of data-parallel ranks that ZeRO shards within: each has the whole state, so that gathers and reductions of a micro-batch "
         "stay in a group, of a node for example, and gradients meet over groups once a step. Divides mesh.dp; not with stage 0."},
    {KEY(mesh.tp), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024}, .fallback = "1",
     .help =
         "Tensor-parallel ranks: each has a part of every layer's heads and features and of the vocabulary, and between products a part "
         "of the tokens. Divides heads, ff_width and the tokens of a micro-batch, and divides or is a multiple of kv_heads: ranks that "
         "have "
         "the same key and value head make equal parts of its features. Neighbours of the launch: keep it inside a node. Experts are not "
         "cut: each rank does its own rows of a layer with experts."},
    {KEY(mesh.pp), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024}, .fallback = "1",
     .help = "Pipeline stages: each has some of the layers, the first the embedding too and the last the head; residual streams and their "
             "gradients travel between neighbours. At most model.layers. The outermost axis: stages may be on nodes of their own."},
    {KEY(mesh.cp), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024}, .fallback = "1",
     .help =
         "Context-parallel ranks: each has an equal share of every sequence's tokens, and ranks of dp and cp together share the state of "
         "the parameters. Divides batch.sequence_length and, with context.method = \"ulysses\", heads, and divides or is a multiple of "
         "kv_heads (with mesh.tp, those of a rank); with \"ring\" twice mesh.cp divides batch.sequence_length. Each layer exchanges tokens "
         "for heads around its attention, or blocks of keys inside it: keep it inside a node."},
    {KEY(mesh.ep), .type = integer, .unit = "ranks", .limits = {.least = 1, .most = 1024}, .fallback = "1",
     .help =
         "Expert-parallel ranks: each has an equal part of the experts of every layer and divides the batch as ranks of dp do; rows of "
         "tokens travel to their experts and back. Divides model.experts. A rank plans for blocks of rows of each other: as many as its "
         "tokens could ask for, or with experts.capacity_factor as many as experts take."},

    // [context]
    {KEY(context.method), .type = text, .fallback = "\"ulysses\"",
     .help = "With mesh.cp above 1, how attention sees whole sequences. ulysses: ranks exchange tokens for heads before attention, so that "
             "each has all tokens with a part of the heads, and back after it. Of fewer key and value heads than ranks, several have the "
             "same. ring: each rank keeps its tokens, a chunk from the sequence's begin and one from its end, and blocks of keys and "
             "values go round the ranks beside the attention to them: for more ranks than heads, in as many steps as there are ranks."},

    // [pipeline]
    {KEY(pipeline.schedule), .type = text, .fallback = "\"1f1b\"",
     .help =
         "Order in which a stage works on the micro-batches. 1f1b alternates a forward and a backward pass, so that at most as many "
         "micro-batches as there are stages after it, and its own, have activations there. interleaved gives each stage several runs of "
         "layers: less waiting for as many more transfers and some more activations. zero_bubble makes gradients of weights later than "
         "those of inputs, while a stage would wait: less waiting for what such gradients read, which stays longer."},
    {KEY(pipeline.virtual_stages), .type = integer, .unit = "runs of layers", .limits = {.least = 2, .most = max_dim}, .fallback = "2",
     .help =
         "With schedule = \"interleaved\": runs of layers of each stage. mesh.pp times as many runs make up the model's layers; run k is "
         "on stage k modulo mesh.pp."},
    {KEY(pipeline.layers), .type = integers, .unit = "layers", .limits = {.least = 1, .most = max_dim}, .fallback = "[]",
     .help = "Layers of each stage, or with schedule = \"interleaved\" of each run of layers in the order of the model, which make up "
             "model.layers; [] lets FLOPs and memory say them, with embedding and head counted."},

    // [topology]
    {KEY(topology.share_gpu), .type = boolean, .fallback = "false",
     .help = "Lets several ranks of a node share a GPU where there are fewer GPUs than ranks, for tests: their collectives go through "
             "sockets. false refuses such a launch."},
    {KEY(topology.mixed_processors), .type = boolean, .fallback = "false",
     .help =
         "Lets ranks compute with other instructions than each other (as oneDNN chooses them on nodes of several kinds), so that results "
         "depend on which rank computes what; not with run.reproducible. false refuses such a launch. The program is the same on all "
         "ranks in any case."},
    {KEY(topology.hierarchical), .type = text, .fallback = "\"auto\"",
     .help = "How host ranks of a group that spans nodes, as many on each, gather and sum. auto: through shared memory inside a node, and "
             "between nodes each byte once; never: all of it by MPI. Bits are the same."},
    {KEY(topology.start_timeout), .type = duration, .unit = "time", .limits = {.least = 1, .most = 31536000}, .fallback = "\"5 min\"",
     .help = "The ranks of a launch wait this long for each other; then those that have come end, with status 76. Who is missing is said "
             "after 10 s, and at the end."},
    {KEY(topology.collective_timeout), .type = duration, .unit = "time", .limits = {.least = 1, .most = 31536000}, .fallback = "\"5 min\"",
     .help =
         "A rank that waits for the others longer than this ends the run with a message. Longer than a save of the slowest disk takes."},

    // [checkpoint]
    {KEY(checkpoint.every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
     .help = "Steps between checkpoints; 0: only after the last step and on a signal."},
    {KEY(checkpoint.keep), .type = integer, .unit = "checkpoints", .limits = {.least = 0, .most = 1e9}, .fallback = "2",
     .help = "Newest whole checkpoints of the run's line of descent that stay on disk; 0: all."},
    {KEY(checkpoint.keep_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
     .help = "Checkpoints of steps that it divides stay for ever beside those; 0: none. A multiple of checkpoint.every."},
    {KEY(checkpoint.weights_every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
     .help = "Steps between saves of the weights alone, a third of a checkpoint, in RUN/weights, where they stay; 0: none."},
    {KEY(checkpoint.async), .type = boolean, .fallback = "false",
     .help = "Saves are written from a copy of the state in the host's memory, made beside the next step and counted by the plan, while "
             "steps go on."},
    {KEY(checkpoint.files), .type = counted, .unit = "files", .limits = {.least = 1, .most = 1e6}, .choices = {"rank", "node"},
     .fallback = "\"rank\"",
     .help = "Shard files of a checkpoint: one for each rank, one for the ranks of a node, or so many in all (a rank has a file at most)."},
    {KEY(checkpoint.staging), .type = text, .unit = "path", .fallback = "\"\"",
     .help = "A folder on a disk of each node: a save goes there while the steps wait, and from there to run.output_dir while they go on."},
    {KEY(checkpoint.retries), .type = integer, .unit = "saves", .limits = {.least = 0, .most = 1e6}, .fallback = "3",
     .help = "A save that fails is tried again after the next step, so many times in a row, before it ends the run."},
    {KEY(checkpoint.verify_resume), .type = boolean, .fallback = "false",
     .help =
         "Loss and gradient norm of the two steps after each save are kept beside it, and a run that goes on from there must have them bit "
         "for bit, at any layout that promises bits; a run makes two steps more after its last save. With run.reproducible."},

    // [evaluate]
    {KEY(evaluate.every), .type = integer, .unit = "optimizer steps", .limits = {.least = 0, .most = 1e12}, .fallback = "0",
     .help = "Steps between evaluations on data.validation; 0: none."},
    {KEY(evaluate.batches), .type = integer, .unit = "micro-batches", .limits = {.least = 1, .most = 1e9}, .fallback = "16",
     .help = "Micro-batches of one evaluation over all ranks, the same ones each time."},

    // [metrics]
    {KEY(metrics.csv), .type = boolean, .fallback = "false",
     .help = "Writes metrics.csv in the run's folder too: a line a row of metrics.jsonl, and a column a figure that is one number."},
    {KEY(metrics.tensorboard), .type = boolean, .fallback = "false",
     .help = "Writes tensorboard/ in the run's folder too: an event file that TensorBoard shows, of every number of metrics.jsonl."},

    // [kernels]
    {KEY(kernels.loss_chunk), .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim}, .fallback = "\"auto\"",
     .automatic = Auto::kept,
     .help = "Tokens whose logits are held at one time; auto picks some that fit the caches of a host, or some thousands on a GPU."},
    {KEY(kernels.pack_weights), .type = boolean, .fallback = "false",
     .help =
         "Keep weight matrices also in the layouts that the host's matrix product reads fastest, packed once a step for all micro-batches. "
         "Costs two more copies of them; only weights that a rank keeps whole (stages 0 to 2), not in reproducible mode."},
    {KEY(kernels.gemm_search), .type = boolean, .fallback = "true",
     .help =
         "On a GPU, times cuBLASLt's algorithms for each matrix product at the start and keeps the fastest in a file of the user's cache "
         "folder, for this kind of GPU; false takes cuBLASLt's first choice, and so does reproducible mode."},
    {KEY(kernels.cuda_graph), .type = text, .fallback = "\"auto\"", .automatic = Auto::kept,
     .help =
         "On a GPU, makes a CUDA graph of the step (of a token in generate) when it runs for the second time, and launches that from then "
         "on; auto does so for steps of up to 20000 tasks, and goes on without where CUDA refuses."},

    {KEY(kernels.attention), .type = text, .fallback = "\"auto\"", .automatic = Auto::kept,
     .help =
         "On a GPU, whose attention runs: ours, or cuDNN's (bf16 or fp16, head dims that are multiples of 8), which plans more workspace. "
         "auto "
         "times both at the start, forward and backward apart, says which it took, and keeps that with gemm_search's choices; it is ours "
         "in fp32, where there is no cuDNN and in reproducible mode, where cuDNN's workspace grows with the square of the sequence."},

    // [memory]
    {KEY(memory.device), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .fallback = "\"auto\"", .automatic = Auto::kept,
     .help =
         "Memory that a rank computes in, for example \"80 GB\", for `tessera plan` and the run: that of its GPU, of which a reserve is "
         "kept "
         "for CUDA, NCCL and libraries; with run.device = \"host\" a limit of its host memory, beside memory.host. auto is what a run "
         "finds "
         "free; a plan for a GPU then knows no limit."},
    {KEY(memory.host), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .fallback = "\"auto\"", .automatic = Auto::kept,
     .help = "Host memory that a rank may plan for, for example \"8 GiB\"; auto is what the node has, shared by its ranks."},
    {KEY(memory.pinned), .type = bytes, .unit = "bytes", .limits = {.least = 1}, .fallback = "\"auto\"", .automatic = Auto::kept,
     .help = "On a GPU: how much of its host memory a rank may pin, for copies beside other work; auto is no limit but memory.host. What "
             "offloading pins is pageable with pin_memory = false."},

    // [nvme]
    {KEY(nvme.block_size), .type = integer, .unit = "bytes", .limits = {.least = 4096, .most = 1 << 30}, .fallback = "1048576",
     .help = "Of a request to a disk and of a checksum, rounded up to a multiple of 4096; what lies there begins on one."},
    {KEY(nvme.queue_depth), .type = integer, .unit = "requests", .limits = {.least = 1, .most = 1024}, .fallback = "8",
     .help = "Requests that a rank's disks have at a time."},
    {KEY(nvme.threads), .type = integer, .unit = "threads a rank", .limits = {.least = 1, .most = 64}, .fallback = "1",
     .help = "That verify, and encrypt, what moves; where the system forbids io_uring there are queue_depth of them."},
    {KEY(nvme.encrypt), .type = boolean, .fallback = "false",
     .help = "Encrypts what lies on disks (AES-256-XTS) under a key that only the process knows."},
    {KEY(nvme.wipe), .type = boolean, .fallback = "false",
     .help = "Overwrites what lay on disks at the end of a run; after a kill, only encrypt hides it."},
});
#undef KEY
#undef MODEL_KEY

}  // namespace

std::span<const Key> deck_keys() { return table; }

const Key* find_key(std::string_view name) {
  auto it = std::find_if(table.begin(), table.end(), [&](const Key& k) { return k.name == name; });
  return it == table.end() ? nullptr : &*it;
}

bool is_section(std::string_view name) {
  return std::any_of(table.begin(), table.end(),
                     [&](const Key& k) { return k.name.size() > name.size() && k.name.starts_with(name) && k.name[name.size()] == '.'; });
}

}  // namespace tessera
