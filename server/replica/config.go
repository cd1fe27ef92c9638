package replica

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// settings are the settings of git for all replicas. %s is the directory with the hooks.
//
// Git does not sync files, because the object store syncs the packs, and replicas are removed at a restart. Refs are
// changed in the records, so receive-pack passes all updates of refs to the hook proc-receive. The three settings of
// receive.fsck accept objects that old versions of git have written into many repositories, as github.com and
// gitlab.com do. ref-in-want is off, because upload-pack sends wanted-refs before shallow-info, and stock git then
// refuses the answer to a shallow clone. Only filters are allowed that partial clones use and that git applies without
// reading other objects: with a filter sparse:oid, git would compare every path of every commit with the patterns in a
// blob.
const settings = `[core]
	hooksPath = %s
	fsync = none
	packedGitWindowSize = 16m
	packedGitLimit = 256m
	deltaBaseCacheLimit = 32m
	bigFileThreshold = 64m
	logAllRefUpdates = false
[safe]
	directory = *
	bareRepository = all
[gc]
	auto = 0
[maintenance]
	auto = false
[pack]
	threads = 1
	windowMemory = 64m
	deltaCacheSize = 32m
	writeReverseIndex = false
	writeBitmapHashCache = true
[repack]
	writeBitmaps = false
	updateServerInfo = false
[transfer]
	advertiseObjectInfo = true
	unpackLimit = 1
[receive]
	fsckObjects = true
	unpackLimit = 1
	advertiseAtomic = true
	advertisePushOptions = true
	procReceiveRefs = refs
	autogc = false
	updateServerInfo = false
	denyCurrentBranch = ignore
	denyDeleteCurrent = ignore
[receive "fsck"]
	badTimezone = ignore
	missingSpaceBeforeDate = ignore
	zeroPaddedFilemode = ignore
[uploadpack]
	allowFilter = true
	allowAnySHA1InWant = true
[uploadpackfilter]
	allow = false
[uploadpackfilter "blob:none"]
	allow = true
[uploadpackfilter "blob:limit"]
	allow = true
[uploadpackfilter "tree"]
	allow = true
[uploadpackfilter "combine"]
	allow = true
`

// passed are the names of the environment variables of this process that git processes get. All other variables may
// contain secrets.
var passed = []string{"PATH", "TMPDIR", "GIT_EXEC_PATH", "LD_LIBRARY_PATH"}

// configure writes the settings and returns the environment of git processes.
func configure(dir, hooks string) ([]string, error) {
	if hooks == "" {
		hooks = filepath.Join(dir, "hooks")
	}
	for _, d := range []string{hooks, filepath.Join(dir, "shared")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(dir, "config")
	if err := disk.WriteFile(path, fmt.Appendf(nil, settings, gitcmd.Quote(hooks)), 0o600); err != nil {
		return nil, err
	}
	env := []string{
		"GIT_CONFIG_GLOBAL=" + path, "GIT_CONFIG_NOSYSTEM=1", "GIT_ATTR_NOSYSTEM=1", "GIT_NO_REPLACE_OBJECTS=1",
		"HOME=" + dir,
		gitcmd.NoPrompt, gitcmd.NoFetch, gitcmd.PlainText,
	}
	for _, name := range passed {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env, nil
}
