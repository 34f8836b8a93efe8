-- Store the answer to a question, unless it has one: the first answer is the answer.
-- KEYS: questions of the user, answers to them, due times of the server
-- ARGV: id, the answer, member of the due times, now in ms
-- Returns {'OK'}, {'KNOWN', the answer that it has}, or {'NONE'}: there is no such question.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return {'NONE'}
end
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then
  return {'KNOWN', known}
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[3])
return {'OK'}
