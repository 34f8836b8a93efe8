-- Mark an open question as asked by two requests, so that the first one, refused, does not forget it.
-- KEYS: questions of the user   ARGV: id, the question as it was read, the same with its mark
-- Returns {'OK'}, or {'OTHER'}: it was forgotten or marked meanwhile.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return {'OTHER'}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {'OK'}
