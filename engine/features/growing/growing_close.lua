-- Close a message that grows: nothing is appended any more. Its message is published next. A repeat finds it as it was closed.
-- KEYS: the growth, due times of the server
-- ARGV: generation ('' for any), size that it must have (-1 for any), why it ends, its ending, due time in ms, member of the due times,
--       its last progress ('' for the one that is there)
-- Returns {'OK', {field, value, ...}}: the growth; {'ENDED', why}, {'REFUSED'}, {'GONE'}, {'REPLACED'}, or {'SHORT', size}.
local known = redis.call('HMGET', KEYS[1], 'generation', 'size', 'reason', 'ended', 'refused')
if not known[1] then
  redis.call('ZREM', KEYS[2], ARGV[6])
  return {'GONE'}
end
if ARGV[1] ~= '' and known[1] ~= ARGV[1] then
  return {'REPLACED'}
end
if known[5] and known[3] == '' then
  return {'REFUSED'}
end
if known[4] then
  return {'ENDED', known[3] or ''}
end
if not known[3] then
  if ARGV[2] ~= '-1' and ARGV[2] ~= known[2] then
    return {'SHORT', known[2]}
  end
  redis.call('HSET', KEYS[1], 'reason', ARGV[3], 'ending', ARGV[4])
  if ARGV[7] ~= '' then
    redis.call('HSET', KEYS[1], 'progress', ARGV[7])
  end
end
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[6])
return {'OK', redis.call('HGETALL', KEYS[1])}
