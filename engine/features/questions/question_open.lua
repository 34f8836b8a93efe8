-- Store a question, unless its id is taken.
-- KEYS: questions of the user, due times of the server, answers to these questions
-- ARGV: id, the question, member of the due times, deadline in ms, questions of the user at most
-- Returns {'OK'}, {'KNOWN', the question that has the id, its answer or ''}, or {'FULL'}.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known then
  return {'KNOWN', known, redis.call('HGET', KEYS[3], ARGV[1]) or ''}
end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then
  return {'FULL'}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[3])
return {'OK'}
