# Writes to the volume of run folders as a run does, and reads the one of models if there is one.
folder=/runs/.helm-test-$$
if ! reason=$( (mkdir "$folder" && echo written > "$folder/file" && mv "$folder" "$folder-moved") 2>&1 ); then
  echo "/runs (claim $CLAIM) is not writable by user $(id -u), group $(id -g): $reason. Let that user write to the folder on the storage, for example by chown."
  exit 1
fi
rm -r "$folder-moved"
if [ -e /models ] && ! reason=$(ls /models 2>&1 > /dev/null); then
  echo "/models is not readable by user $(id -u), group $(id -g): $reason."
  exit 1
fi
echo "/runs (claim $CLAIM) is writable by user $(id -u)."
