-- One group commit: skip a group that was applied, look up its ids, append.
-- KEYS: epoch, head, journal, idempotency keys...   ARGV: epoch, number, payload, ttl ms, expected head, values...
-- head is "<epoch>-<number>" of the last append, with a suffix "u" when that was rolled back (undone).
-- Returns {"OK"}, {"LOST", what, found} or {"KNOWN", index, value, ...}.
local head = redis.call('GET', KEYS[2]) or ''
local last = string.match(head, '^' .. ARGV[1] .. '%-(%d+)u?$')
if last and tonumber(last) >= tonumber(ARGV[2]) then
  return {'OK'} -- a repeat whose first reply was lost, or a delayed copy of a group that was rolled back
elseif head ~= ARGV[5] then
  return {'LOST', 'the last group', head}
end
local known = {}
for i = 4, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value then
    known[#known + 1] = i - 4
    known[#known + 1] = value
  end
end
if #known > 0 then
  return {'KNOWN', unpack(known)}
end
-- Redis rejects writes (out of memory, disk full, demoted master) at a script's first write only: the group applies whole or not.
redis.call('XADD', KEYS[3], ARGV[1] .. '-' .. ARGV[2], 'b', ARGV[3])
for i = 4, #KEYS do
  redis.call('SET', KEYS[i], ARGV[i + 2], 'PX', ARGV[4])
end
redis.call('SET', KEYS[2], ARGV[1] .. '-' .. ARGV[2])
return {'OK'}
