-- Append deaths that Ray exported, unless too many wait.
-- KEYS: the stream   ARGV: entries that may wait; the deaths as JSON
-- Returns {'OK'}, or {'FULL'} and nothing was written.
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[1]) then
  return {'FULL'}
end
redis.call('XADD', KEYS[1], '*', 'deaths', ARGV[2])
return {'OK'}
