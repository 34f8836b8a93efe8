-- Keep entries that a consumer is working on from being claimed by others. For any caller.
-- KEYS: stream   ARGV: group, consumer, ids of entries
-- Returns {'OK', ids that the consumer still has: not settled, not claimed by another, not deleted}.
-- A deleted entry, of a user who was erased, leaves the pending ones too. Of a group or stream that Redis has lost, no entry is left.
local held = {}
for i = 3, #ARGV do
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) == 0 then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
  elseif not pending.err and #pending > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
    held[#held + 1] = ARGV[i]
  end
end
return {'OK', held}
