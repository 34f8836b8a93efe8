-- Put before the scripts of the folder `journal`. A group has an entry in the journal of each slot that it has something of.
-- KEYS: head of each slot, journal of each slot, then as accepted_ids.lua   ARGV: number of the group, ttl ms of ids, number of slots, ...
-- head is "<epoch>-<number>" of the last append, with a suffix "u" when that was rolled back (undone). Its epoch is that of the slot.
local number, slot_count = ARGV[1], tonumber(ARGV[3])
local heads = redis.call('MGET', unpack(KEYS, 1, slot_count))

-- Whether this group, or one after it, was here before: a repeat whose first reply was lost, or a delayed copy.
local function is_past(head, expected)
  local epoch, last = string.match(head, '^(%d+)%-(%d+)u?$')
  return epoch == string.match(expected, '^%d+') and tonumber(last) >= tonumber(number)
end

-- The reply to who finds this head in the place of the one it left.
local function unexpected(head, expected)
  local epoch = string.match(head, '^%d+')
  if epoch and tonumber(epoch) > tonumber(string.match(expected, '^%d+')) then
    return {'FENCED', epoch}
  end
  return {'LOST', 'the last group', head}
end
