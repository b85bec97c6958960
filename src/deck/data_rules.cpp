// How documents of the data become sequences, and what does not go with it.
#include "deck/draft.hpp"

namespace tessera {
namespace {

/// What knows no documents.
void check_document_mask(Draft& draft) {
  const Deck& d = draft.deck;
  if (!draft.good({"data.document_mask"}) || !d.data.document_mask) return;
  if (draft.good({"mesh.cp", "context.method"}) && d.mesh.cp > 1 && d.context.method == "ring")
    draft.fault({"data.document_mask", "context.method", "mesh.cp"},
                "blocks of keys that go round a ring are seen whole by the queries after them, whatever their documents, in this version; "
                "set context.method = \"ulysses\", mesh.cp = 1, or data.document_mask = false");
  if (draft.good({"kernels.attention", "run.device"}) && d.kernels.attention == "cudnn" && d.run.device != "host")
    draft.fault({"data.document_mask", "kernels.attention"},
                "documents are masked by our own attention, and kernels.attention = \"cudnn\" asks for another; set it to \"auto\" or "
                "\"native\", or data.document_mask = false");
}

/// Sequences of whole documents.
void check_packed_documents(Draft& draft) {
  const DataKeys& data = draft.deck.data;
  if (!draft.good({"data.packing", "data.document_mask", "data.too_long"})) return;
  if (data.packing == "documents" && !data.document_mask)
    draft.fault({"data.packing", "data.document_mask"},
                "documents that are put into a sequence by size have nothing to do with each other, and would see each other; with "
                "data.packing = \"documents\" set data.document_mask = true");
  if (data.packing != "documents" && data.too_long != "refuse")
    draft.idle("data.too_long", "data.packing",
               "has no effect with data.packing = \"concatenate\", which takes documents of any length; set data.packing = \"documents\" "
               "or leave this key out");
}

}  // namespace

void check_data(Draft& draft) {
  check_document_mask(draft);
  check_packed_documents(draft);
}

}  // namespace tessera
