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
	monitorConfig = "artifactfs-config" // settings of this working tree alone
	loginsConfig  = "artifactfs-logins" // which logins git asks us for
	// helperRemote is the promisor remote that the daemon answers for. It has to be in front of origin: git asks promisor
	// remotes in the order of the file. (extensions.partialClone would say the same and make libgit2 refuse the repository.)
	helperRemote = "artifactfs"
)

// configure sets what a clone has in its configuration, and what we need of git, over what the template had.
func (o Options) configure(c *config.Config, path string) ([]byte, error) {
	// In front of everything, so that what the user sets wins.
	first := config.New()
	first.SetOption("include", "", "path", loginsConfig)
	first.SetOption("includeIf", "gitdir:", "path", monitorConfig) // setPlaces says which
	c.Sections = append(first.Sections, c.Sections...)
	c.SetOption("core", "", "repositoryformatversion", "1").SetOption("core", "", "filemode", "true").
		SetOption("core", "", "bare", "false").SetOption("core", "", "logallrefupdates", "true")
	if o.Format != object.SHA1 {
		c.SetOption("extensions", "", "objectFormat", o.Format.String())
	}
	if (o.Partial || o.Session != "") && o.Helper != "" { // a session may have contents elsewhere, whatever the remote is like
		c.SetOption("remote", helperRemote, "promisor", "true").
			SetOption("remote", helperRemote, "skipFetchAll", "true").
			SetOption("remote", helperRemote, "tagOpt", "--no-tags")
	}
	c.SetOption("remote", "origin", "url", o.Remote).
		SetOption("remote", "origin", "fetch", "+refs/heads/*:refs/remotes/origin/*")
	if o.Partial { // with a plain file server either key would make git ask for missing objects without end
		c.SetOption("remote", "origin", "promisor", "true").SetOption("remote", "origin", "partialclonefilter", "blob:none")
	}
	if branch, ok := strings.CutPrefix(o.Ref, "refs/heads/"); ok {
		c.SetOption("branch", branch, "remote", "origin").SetOption("branch", branch, "merge", o.Ref)
	}
	// The store's packs are looked after by artifactfs; git tidying up behind a command would only get in the way.
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

// setMonitor writes the settings that hold for the mount's working tree and not for the ones that `git worktree add`
// makes elsewhere, which nobody monitors. They follow the installed git and where our programs are, and are set anew
// whenever the git directory is opened.
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
		// A plain path is started without a shell, and its directory tells the program whom to ask.
		if err := os.Symlink(target, hook); err != nil {
			return err
		}
		command = run
	}
	if command != "" {
		c.SetOption("core", "", "fsmonitor", command).SetOption("core", "", "fsmonitorHookVersion", "2").
			SetOption("core", "", "untrackedCache", "true").
			SetOption("fsmonitor", "", "allowRemote", "true") // git takes FUSE for a network file system
	}
	var b bytes.Buffer
	if err := config.NewEncoder(&b).Encode(c); err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(path, monitorConfig), b.Bytes(), 0o644)
}

// realPath is what git compares with; of what is not there yet, the part that is.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(realPath(dir), filepath.Base(path))
	}
	return path
}

func shellQuote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
