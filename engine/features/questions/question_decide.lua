-- Store the answer to a question, unless it has one: the first answer is the answer.
-- KEYS: questions of the user, answers to them, due times of the server, answers of members to this one
-- ARGV: id, the answer, member of the due times, now in ms, how many members had answered when this was decided: '' where it does not matter
-- Returns {'OK'}, {'KNOWN', the answer that it has}, {'MORE'}: others have answered since, or {'NONE'}: there is no such question.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return {'NONE'}
end
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then
  return {'KNOWN', known}
end
if ARGV[5] ~= '' and redis.call('HLEN', KEYS[4]) ~= tonumber(ARGV[5]) then
  return {'MORE'}
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[3], ARGV[4], ARGV[3])
return {'OK'}
