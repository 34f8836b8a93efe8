-- One group commit: refuse what was applied, look up ids, append.
-- KEYS: epoch, head, journal, idempotency keys...   ARGV: epoch, number, payload, ttl ms, expected head, values...
-- head is "<epoch>-<number>" of the last append, with a "u" behind it when that was rolled back (undone).
-- Returns {"OK"}, {"LOST", what, found} or {"KNOWN", index, value, ...}.
local head = redis.call('GET', KEYS[2]) or ''
local last = string.match(head, '^' .. ARGV[1] .. '%-(%d+)u?$')
if last and tonumber(last) >= tonumber(ARGV[2]) then
  return {'OK'} -- the first answer was lost on its way, or this is a late copy of a group that was rolled back
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
-- Out of memory, a full disk and a demoted master refuse a script's first write, and only that: nothing is half done.
redis.call('XADD', KEYS[3], ARGV[1] .. '-' .. ARGV[2], 'b', ARGV[3])
for i = 4, #KEYS do
  redis.call('SET', KEYS[i], ARGV[i + 2], 'PX', ARGV[4])
end
redis.call('SET', KEYS[2], ARGV[1] .. '-' .. ARGV[2])
return {'OK'}
