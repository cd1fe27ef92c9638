package gitdir

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/internal/disk"
)

const (
	monitorConfig = "artifactfs-config" // file with settings that apply only to the mount's working tree
	loginsConfig  = "artifactfs-logins" // file with settings that make git request logins from the daemon
	// helperRemote is the name of the promisor remote through which git requests missing objects from the daemon. Its
	// section must precede the section of the mounted remote, because git tries promisor remotes in the order of the
	// configuration file. (extensions.partialClone would have the same effect, but libgit2 refuses repositories with this
	// setting.)
	helperRemote = "artifactfs"
)

// configure adds two groups of settings to c, the configuration of git's template: those that git clone sets, and those
// that artifactfs needs. It returns the contents of the configuration file.
func (o Options) configure(c *config.Config, path string) ([]byte, error) {
	// The includes are the first sections, so that the user's settings, which follow, take precedence.
	first := config.New()
	first.SetOption("include", "", "path", loginsConfig)
	// setPlaces completes the condition "gitdir:" by the path of the git directory.
	first.SetOption("includeIf", "gitdir:", "path", monitorConfig)
	c.Sections = append(first.Sections, c.Sections...)
	c.SetOption("core", "", "repositoryformatversion", "1").SetOption("core", "", "filemode", "true").
		SetOption("core", "", "bare", "false").SetOption("core", "", "logallrefupdates", "true")
	if o.Format != object.SHA1 {
		c.SetOption("extensions", "", "objectFormat", o.Format.String())
	}
	if o.asks() {
		c.SetOption("remote", helperRemote, "promisor", "true").
			SetOption("remote", helperRemote, "skipFetchAll", "true").
			SetOption("remote", helperRemote, "tagOpt", "--no-tags")
	}
	remote := refname.Remote(path)
	c.SetOption("remote", remote, "url", o.Remote).
		SetOption("remote", remote, "fetch", "+refs/heads/*:refs/remotes/"+remote+"/*")
	// Set these keys only for partial clones. If the remote is a plain file server, each of these keys would make git
	// request missing objects from the remote again and again.
	if o.Partial {
		c.SetOption("remote", remote, "promisor", "true").SetOption("remote", remote, "partialclonefilter", "blob:none")
	}
	if branch, ok := strings.CutPrefix(o.Ref, "refs/heads/"); ok {
		c.SetOption("branch", branch, "remote", remote).SetOption("branch", branch, "merge", o.Ref)
	}
	// artifactfs maintains the packs of the store, so maintenance by git would only delay the command that starts it. If a
	// user runs maintenance, git 2.55 would repack in geometric steps by default. This fails if all packs of the promisor
	// are in alternates: git then writes a pack without objects, which its multi-pack index refuses.
	c.SetOption("gc", "", "auto", "0").SetOption("maintenance", "", "auto", "false").SetOption("maintenance", "",
		"strategy", "gc")
	if o.State != nil {
		if err := o.setCarried(c); err != nil {
			return nil, err
		}
	}
	if err := addSettings(c, o.Settings); err != nil {
		return nil, err
	}
	o.setPlaces(c, path)
	var b bytes.Buffer
	err := config.NewEncoder(&b).Encode(c)
	return b.Bytes(), err
}

// setMonitor writes the file monitorConfig. Its settings apply only to the mount's working tree. Worktrees that `git
// worktree add` creates elsewhere have no file system monitor, so the settings must not apply to them. The settings
// depend on the version of git and on the paths of programs, so Create and Open write the file each time.
func (o Options) setMonitor(path string) error {
	c := config.New()
	for _, name := range []string{query.HookName, query.CarefulName} {
		// Earlier versions have put the link into the git directory.
		for _, old := range []string{query.Beside(path, name), filepath.Join(path, name)} {
			if err := os.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	command := ""
	if o.Git.AtLeast(socketMonitor) {
		command = "true"
	} else if o.Monitor != "" {
		// The hook is a symbolic link because its path has no special characters, so git starts it without a shell, and
		// because the path names the git directory, in which the hook finds the socket of the monitor.
		var link string
		if command, link = o.hook(path); link != "" {
			if err := os.Symlink(o.Monitor, link); err != nil {
				return err
			}
		}
	}
	if command != "" {
		c.SetOption("core", "", "fsmonitor", command).SetOption("core", "", "fsmonitorHookVersion", "2").
			SetOption("core", "", "untrackedCache", "true").
			// git treats FUSE as a network file system, for which a monitor must be allowed.
			SetOption("fsmonitor", "", "allowRemote", "true")
	}
	if o.Streams {
		c.SetOption("core", "", "bigFileThreshold", bigFile)
	}
	var b bytes.Buffer
	if err := config.NewEncoder(&b).Encode(c); err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(path, monitorConfig), b.Bytes(), 0o644)
}

// realPath returns path with all symbolic links resolved, because git compares resolved paths. Components of the path
// that do not exist are kept.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(realPath(dir), filepath.Base(path))
	}
	return path
}

// shellQuote quotes a word for the shell.
func shellQuote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
