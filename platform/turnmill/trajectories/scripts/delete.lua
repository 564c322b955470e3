-- Deletes everything of a trajectory.
local undeclared = undeclared_tools()
if undeclared then
  return undeclared
end
for tool in each_tool() do
  redis.call('UNLINK', state_key(tool))
end
return redis.call('UNLINK', TRAJECTORY, CALLS)
