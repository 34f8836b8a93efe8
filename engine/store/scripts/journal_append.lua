-- One group commit: fence, refuse what was applied, look up ids, append.
-- KEYS: epoch, head, journal, idempotency keys...   ARGV: epoch, number, payload, ttl ms, values...
-- head is "<epoch>-<number>" of the last append or rollback. Returns {"OK"}, {"FENCED", epoch} or {"KNOWN", index, value, ...}.
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then
  return {'FENCED', epoch or ''}
end
local head = redis.call('GET', KEYS[2])
if head then
  local last = string.match(head, '^' .. ARGV[1] .. '%-(%d+)$')
  if last and tonumber(last) >= tonumber(ARGV[2]) then
    return {'OK'} -- the first answer was lost on its way, or this is a late copy of a group that was rolled back
  end
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
redis.call('XADD', KEYS[3], ARGV[1] .. '-' .. ARGV[2], 'b', ARGV[3])
for i = 4, #KEYS do
  redis.call('SET', KEYS[i], ARGV[i + 1], 'PX', ARGV[4])
end
redis.call('SET', KEYS[2], ARGV[1] .. '-' .. ARGV[2])
return {'OK'}
