-- Remove a group whose publishers get "unavailable", and keep a delayed copy of its append from applying.
-- KEYS: epoch, head, journal, idempotency keys...   ARGV: epoch, number, head before the group
local id = ARGV[1] .. '-' .. ARGV[2]
local head = redis.call('GET', KEYS[2]) or ''
if head ~= ARGV[3] and head ~= id and head ~= id .. 'u' then
  local last = string.match(head, '^' .. ARGV[1] .. '%-(%d+)u?$')
  if last and tonumber(last) > tonumber(ARGV[2]) then
    return {'OK'} -- a delayed copy: the group was rolled back and later groups were appended
  end
  return {'LOST', 'the last group', head}
end
if redis.call('XDEL', KEYS[3], id) == 1 then
  for i = 4, #KEYS do
    redis.call('DEL', KEYS[i])
  end
end
redis.call('SET', KEYS[2], id .. 'u')
return {'OK'}
