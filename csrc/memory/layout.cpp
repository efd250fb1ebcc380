#include "memory/layout.h"

namespace dda {

Layout::Layout(int size, int blocks, uint64_t slot_bytes, int slots_a_block, uint64_t mailbox_bytes)
    : size(size),
      blocks(blocks),
      slot_bytes(round_up(slot_bytes, kLineBytes)),
      staging_bytes(slots_a_block * this->slot_bytes),
      mailbox_bytes(round_up(mailbox_bytes, kLineBytes)) {
  entries = round_up(sizeof(Control), kLineBytes);
  rows = entries + 2 * sizeof(Entry);
  steps = rows + 2 * row_bytes();
  mailboxes = round_up(steps + blocks * sizeof(Step), kPageBytes);
  slots = round_up(mailboxes + size * (sizeof(Mailbox) + this->mailbox_bytes), kPageBytes);
  total = round_up(slots + blocks * block_bytes(), kPageBytes);
}

}  // namespace dda
