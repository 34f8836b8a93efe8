-- A checkpoint is written: say so, and forget the groups that it covers.
-- KEYS: epoch, journal, mark, slot marks...   ARGV: epoch, number of the checkpoint, lowest mark expected, first group to keep (0: trim
--   nothing), then of each slot that the checkpoint has written the lowest mark expected
-- mark is "<epoch>-<number>" of the last checkpoint.
local mark = redis.call('GET', KEYS[3]) or ''
local last = tonumber(string.match(mark, '^' .. ARGV[1] .. '%-(%d+)$') or '-1')
if last < tonumber(ARGV[3]) then
  return {'LOST', 'the last checkpoint', mark}
end
for i = 4, #KEYS do
  -- Between the pages and this a replica without them may have been promoted: what they hold is in the journal and nowhere else then.
  local found = redis.call('GET', KEYS[i]) or ''
  if tonumber(string.match(found, '^' .. ARGV[1] .. '%-(%d+)$') or '-1') < tonumber(ARGV[i + 1]) then
    return {'LOST', 'pages of this checkpoint', found}
  end
end
if ARGV[4] ~= '0' then
  redis.call('XTRIM', KEYS[2], 'MINID', ARGV[1] .. '-' .. ARGV[4])
end
if last < tonumber(ARGV[2]) then
  redis.call('SET', KEYS[3], ARGV[1] .. '-' .. ARGV[2])
end
return {'OK'}
