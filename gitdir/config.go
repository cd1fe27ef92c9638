package gitdir

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
)

const (
	monitorConfig = "artifactfs-config" // settings that apply to the mount's working tree only
	loginsConfig  = "artifactfs-logins" // settings that make git ask the daemon for logins
	// helperRemote is the name of the promisor remote for which the daemon answers. Its section must precede that of
	// origin, because git asks promisor remotes in the order of the file. (extensions.partialClone would have the
	// same effect, but libgit2 refuses repositories with it.)
	helperRemote = "artifactfs"
)

// configure adds to the template's configuration c the settings of a clone and those that artifactfs needs, and
// returns the file's contents.
func (o Options) configure(c *config.Config, path string) ([]byte, error) {
	// The first sections, so that later settings of the user override the included files.
	first := config.New()
	first.SetOption("include", "", "path", loginsConfig)
	first.SetOption("includeIf", "gitdir:", "path", monitorConfig) // setPlaces sets the condition
	c.Sections = append(first.Sections, c.Sections...)
	c.SetOption("core", "", "repositoryformatversion", "1").SetOption("core", "", "filemode", "true").
		SetOption("core", "", "bare", "false").SetOption("core", "", "logallrefupdates", "true")
	if o.Format != object.SHA1 {
		c.SetOption("extensions", "", "objectFormat", o.Format.String())
	}
	if (o.Partial || o.Session != "") && o.Helper != "" { // a session may hold objects that even a complete remote lacks
		c.SetOption("remote", helperRemote, "promisor", "true").
			SetOption("remote", helperRemote, "skipFetchAll", "true").
			SetOption("remote", helperRemote, "tagOpt", "--no-tags")
	}
	c.SetOption("remote", "origin", "url", o.Remote).
		SetOption("remote", "origin", "fetch", "+refs/heads/*:refs/remotes/origin/*")
	// If the remote is a plain file server, either key would make git ask it for missing objects without end.
	if o.Partial {
		c.SetOption("remote", "origin", "promisor", "true").SetOption("remote", "origin", "partialclonefilter", "blob:none")
	}
	if branch, ok := strings.CutPrefix(o.Ref, "refs/heads/"); ok {
		c.SetOption("branch", branch, "remote", "origin").SetOption("branch", branch, "merge", o.Ref)
	}
	// artifactfs maintains the packs of the store. Maintenance by git after a command would only delay that command.
	c.SetOption("gc", "", "auto", "0").SetOption("maintenance", "", "auto", "false")
	if o.State != nil {
		if err := o.setCarried(c); err != nil {
			return nil, err
		}
	}
	o.setPlaces(c, path)
	var b bytes.Buffer
	err := config.NewEncoder(&b).Encode(c)
	return b.Bytes(), err
}

// setMonitor writes monitorConfig, the settings that apply to the mount's working tree but not to worktrees that `git
// worktree add` creates elsewhere: those have no monitor. The settings depend on the installed git and on the paths
// of programs, so every Create and Open writes them.
func (o Options) setMonitor(path string) error {
	c := config.New()
	for _, name := range []string{query.HookName, query.CarefulName} {
		if err := os.Remove(filepath.Join(path, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	hook, target, run := o.hook(path, o.hookName())
	command := ""
	if o.Git.AtLeast(socketMonitor) {
		command = "true"
	} else if o.Monitor != "" {
		// git starts a command without special characters directly, not through a shell. The directory of the link
		// shows the program to which monitor it has to connect.
		if err := os.Symlink(target, hook); err != nil {
			return err
		}
		command = run
	}
	if command != "" {
		c.SetOption("core", "", "fsmonitor", command).SetOption("core", "", "fsmonitorHookVersion", "2").
			SetOption("core", "", "untrackedCache", "true").
			SetOption("fsmonitor", "", "allowRemote", "true") // git treats FUSE as a network file system
	}
	var b bytes.Buffer
	if err := config.NewEncoder(&b).Encode(c); err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(path, monitorConfig), b.Bytes(), 0o644)
}

// realPath returns path without symbolic links, as git compares paths. Components that do not exist are kept as they
// are.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(realPath(dir), filepath.Base(path))
	}
	return path
}

// shellQuote quotes a word for sh.
func shellQuote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
