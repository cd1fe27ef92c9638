package gitdir

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/config"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Hidden is the name of a directory in the root of the mount. In its subdirectory objects, git finds out whether a blob
// exists that is not on this host (package promisor). git refuses trees with this name, because on NTFS it is another
// name of ".git".
const Hidden = ".git:artifactfs"

// namedObjects is the path of the directory of objects, relative to the root of the mount.
const namedObjects = Hidden + "/objects"

// A git directory that is visible inside the mount (Options.Inside) contains no absolute paths, because the mount may
// be visible at several paths, for example in containers. Files and directories from outside are made visible by bind
// mounts on the paths below. The code that mounts the git directory creates them.
const (
	insideDir     = query.InsideDir        // directory in the git directory
	InsideObjects = insideDir + "/objects" // mount point for the store's objects directory
	InsideSession = insideDir + "/session" // mount point for the session's objects directory
	InsideHelper  = insideDir + "/helper"  // mount point (a file) for the artifactfs command
	// InsideMonitor is a mount point (a file) for Options.Monitor. The version of git in a container may be another one
	// than that of this host, so the hook has the name that is right for all versions.
	InsideMonitor = insideDir + "/" + query.CarefulName
)

// insideHelper is the upload-pack command of the promisor remote. git runs the command with sh and appends the path of
// the remote, which becomes a comment because the command ends in #. git runs the command in git's current directory,
// which may be that of a linked worktree, and removes GIT_DIR from the environment. Therefore the command first reads
// GIT_DIR from the environment of its parent.
const insideHelper = `g=$(tr '\0' '\n' </proc/$PPID/environ | sed -n 's/^GIT_DIR=//p'); ` +
	`d=$(git ${g:+--git-dir="$g"} rev-parse --git-common-dir) && ` +
	`exec "$d/` + InsideHelper + `" upload-pack-helper "$d" #`

// insideURL is a placeholder where git requires a URL. No program opens it.
const insideURL = "file:///artifactfs"

// setPlaces sets the settings that depend on the paths of the git directory and of programs. It returns true if this
// has changed a setting.
func (o Options) setPlaces(c *config.Config, path string) (changed bool) {
	core := c.Section("core")
	switch {
	case !o.Inside && core.Option("worktree") != o.WorkTree && !isLinked(core.Option("worktree"), path, o.WorkTree):
		core.SetOption("worktree", o.WorkTree)
		changed = true
	case o.Inside && core.HasOption("worktree"):
		core.RemoveOption("worktree") // without this setting git uses the directory that contains .git
		changed = true
	}
	// A configuration that an earlier version of artifactfs has written lacks this include.
	if !slices.Contains(c.Section("include").OptionAll("path"), loginsConfig) {
		first := config.New().Section("include")
		c.Sections = append(config.Sections{first.AddOption("path", loginsConfig)}, c.Sections...)
		changed = true
	}
	condition := "gitdir:" + disk.QuoteGlob(realPath(path))
	if o.Inside {
		condition = "gitdir:.git" // git extends this pattern to **/.git, which does not match .git/worktrees/x
	}
	for _, s := range c.Section("includeIf").Subsections {
		if s.Option("path") == monitorConfig && s.Name != condition {
			s.Name, changed = condition, true
		}
	}
	if !c.Section("remote").HasSubsection(helperRemote) || o.Helper == "" {
		return changed
	}
	at := url.URL{Scheme: "file", Path: realPath(path)}
	uploadPack, from := shellQuote(o.Helper)+" upload-pack-helper", at.String()
	if o.Inside {
		uploadPack, from = insideHelper, insideURL
	}
	remote := c.Section("remote").Subsection(helperRemote)
	for key, value := range map[string]string{"url": from, "uploadpack": uploadPack} {
		if remote.Option(key) != value {
			remote.SetOption(key, value)
			changed = true
		}
	}
	return changed
}

// borrow writes objects/info/alternates, through which git finds the objects of the store and of the session.
func (o Options) borrow(path string) error {
	alternates := filepath.Join(path, "objects", "info", "alternates")
	if !o.Inside {
		// A guarded directory is kept, because a container could change the git directory.
		var err error
		if guard.Exists(path) {
			err = guard.Create(path, o.borrowed())
		}
		return errors.Join(err, disk.WriteFileUnsynced(alternates, []byte(strings.Join(o.borrowed(), "\n")+"\n"+o.existing()),
			0o644))
	}
	inside := "../" + InsideObjects + "\n" // path relative to the objects directory, see gitrepository-layout(5)
	if o.Session != "" {
		inside += "../" + InsideSession + "\n"
	}
	if o.asks() {
		inside += "../../" + namedObjects + "\n"
	}
	return errors.Join(PrepareInside(path), guard.Create(path, o.borrowed()),
		disk.WriteFileUnsynced(alternates, []byte(inside), 0o644))
}

// borrowed returns the objects directories that git uses through alternates.
func (o Options) borrowed() []string {
	if o.Session == "" {
		return []string{o.Objects}
	}
	return []string{o.Objects, o.Session}
}

// existing returns the line for the directory namedObjects of the mount. It returns "" if git cannot request the
// objects that exist there from a promisor remote.
func (o Options) existing() string {
	if !o.asks() || strings.ContainsRune(o.WorkTree, '\n') {
		return ""
	}
	return filepath.Join(o.WorkTree, namedObjects) + "\n"
}

// DropNamedObjects removes the line of the directory namedObjects from the alternates of the git directory at path. It
// is called when the mount has ended, because git prints an error for a line whose directory does not exist. The line
// of a git directory that is visible inside the mount stays, because its directory exists outside of the mount too.
func DropNamedObjects(path string) error {
	name := filepath.Join(path, "objects", "info", "alternates")
	text, err := disk.ReadRegular(name, disk.SmallFile)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = nil // the mount has ended before the git directory was created
		}
		return err
	}
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if !filepath.IsAbs(line) || !strings.HasSuffix(line, "/"+namedObjects+"\n") {
			kept.WriteString(line)
		}
	}
	if kept.Len() == len(text) {
		return nil
	}
	return disk.WriteFile(name, []byte(kept.String()), 0o644)
}

// asks reports whether git requests missing objects from the daemon. Even if the remote is no promisor, a session may
// refer to objects that the remote lacks.
func (o Options) asks() bool { return (o.Partial || o.Session != "") && o.Helper != "" }

// PrepareInside creates the mount points in a git directory that is visible inside the mount. It creates the git
// directory if that does not exist.
func PrepareInside(path string) error {
	var err error
	// The line for namedObjects in objects/info/alternates refers to one of these directories in two cases. Outside of
	// the mount, it refers to an empty directory. For go-git, which interprets the path as relative to the git
	// directory, it refers to a directory that must exist.
	for _, name := range []string{InsideObjects, InsideSession, "../" + namedObjects, namedObjects} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(path, name), 0o755))
	}
	for _, name := range []string{InsideHelper, InsideMonitor} {
		f, openErr := os.OpenFile(filepath.Join(path, name), os.O_CREATE|os.O_WRONLY|unix.O_NONBLOCK, 0o755)
		if openErr == nil {
			openErr = f.Close()
		}
		err = errors.Join(err, openErr)
	}
	return err
}

// hook returns the value of core.fsmonitor, the path at which git starts the hook. git runs it in the root of the
// working tree. The link is the path of a symbolic link to Options.Monitor that has to be there, or "".
func (o Options) hook(path string) (command, link string) {
	if o.Inside {
		return ".git/" + InsideMonitor, ""
	}
	link = query.Beside(path, o.hookName())
	if strings.ContainsAny(link, "|&;<>()$`\\\"' \t\n*?[#~=%") {
		return shellQuote(link), link
	}
	return link, link
}

// isPlace reports whether setPlaces writes this line of the configuration file.
func isPlace(line string) bool {
	line = strings.TrimSpace(line)
	for _, prefix := range []string{"worktree =", "[include]", "path = " + loginsConfig, "[includeIf ", "uploadpack ="} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return line == "url = "+insideURL || strings.HasPrefix(line, "url = file://") && strings.HasSuffix(line, "/git")
}

// hookName returns the name under which the installed git has to start the hook.
func (o Options) hookName() string {
	if o.Git.AtLeast(rightDiff) {
		return query.HookName
	}
	return query.CarefulName
}
