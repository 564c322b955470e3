-- Deletes everything of a trajectory.
for tool in each_tool() do
  redis.call('UNLINK', state_key(tool))
end
return redis.call('UNLINK', TRAJECTORY, CALLS)
