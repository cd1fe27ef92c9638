package agenthook

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// plugin is the text of the plugin for opencode. Install replaces the word COMMAND in it by the shell command of the
// hook, as a JSON string.
//
//go:embed opencode.js
var plugin string

// Change describes the change that Install or Uninstall has made to a configuration file.
type Change struct {
	Path    string // path of the configuration file
	Changed bool
	Tracked bool // whether git tracks the file, so that git status shows the change
	Kept    bool // whether an entry of the same name stays, which the user has made or edited
}

// maxSettings is the maximum size in bytes of a settings file. Larger files are not changed.
const maxSettings = 4 << 20

// Install adds hooks to the configuration of an agent in the directory dir. The hooks run program, which is the
// beginning of a shell command. Hooks of an earlier Install are replaced; the rest of the configuration is kept. If
// Install creates the file, it adds the file to the repository's info/exclude, because the configuration is meant only
// for this machine. A file that the users of a project share is never excluded.
func Install(dir string, a Agent, program string) (Change, error) {
	return InstallPart(dir, a, Hooks, program)
}

// InstallPart is Install for another part of the configuration.
func InstallPart(dir string, a Agent, p Part, program string) (Change, error) {
	return a.piece(p).install(dir, program)
}

// install adds the piece to its file in the directory dir.
func (c piece) install(dir, program string) (Change, error) {
	path := filepath.Join(dir, c.path)
	change := Change{Path: path}
	before, err := readSettings(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return change, fmt.Errorf("read settings: %w", err)
	}
	start := before
	if len(bytes.TrimSpace(before)) == 0 && c.empty != "" {
		start = []byte(c.empty)
	}
	// put replaces what an earlier Install has added. A second Install with the same program changes nothing.
	after, err := c.put(start, program)
	if change.Kept = errors.Is(err, errKept); change.Kept && after == nil {
		return change, nil
	}
	if err != nil && !change.Kept {
		return change, fmt.Errorf("edit settings %s: %w", path, err)
	}
	change.Tracked = tracked(dir, c.path)
	if change.Changed = missing || !bytes.Equal(before, after); !change.Changed {
		return change, nil
	}
	// The file is excluded before it is created, so that git status never shows it.
	if missing && !c.shared {
		if err := exclude(dir, c.path); err != nil {
			return change, fmt.Errorf("exclude %s from git: %w", c.path, err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return change, err
	}
	return change, writeSettings(path, after)
}

// pluginMark is the beginning of the plugin. It distinguishes the plugin from another file of the same name.
const pluginMark = "// artifactfs session hooks"

// Uninstall removes everything that Install has added: the hooks, the line in info/exclude, the configuration file if
// it contains nothing else, and directories that are empty afterwards.
func Uninstall(dir string, a Agent) (Change, error) { return UninstallPart(dir, a, Hooks) }

// UninstallPart is Uninstall for another part of the configuration. The entry of the tools stays if another agent that
// reads the file has hooks or a skill.
func UninstallPart(dir string, a Agent, p Part) (Change, error) {
	c := a.piece(p)
	if p == Tools && c.path == sharedTools && sharesTools(dir, a) {
		return Change{Path: filepath.Join(dir, c.path)}, nil
	}
	return c.uninstall(dir)
}

// uninstall removes the piece from its file in the directory dir.
func (c piece) uninstall(dir string) (Change, error) {
	path := filepath.Join(dir, c.path)
	change := Change{Path: path, Tracked: tracked(dir, c.path)}
	before, err := readSettings(path)
	if errors.Is(err, fs.ErrNotExist) {
		return change, include(dir, c.path)
	}
	if err != nil {
		return change, fmt.Errorf("read settings: %w", err)
	}
	after, n, err := c.cut(before)
	if err != nil {
		return change, fmt.Errorf("edit settings %s: %w", path, err)
	}
	_, err = c.put(after, toolsName)
	change.Kept = errors.Is(err, errKept) || errors.Is(err, errForeign)
	if change.Changed = n > 0; !change.Changed {
		return change, nil
	}
	// A file that git tracks, or at which a link is, is not one that install has created.
	info, err := os.Lstat(path)
	foreign := !c.whole && (change.Tracked || err == nil && !info.Mode().IsRegular())
	if foreign && string(after) == c.empty && isEmptyInGit(dir, c.path) {
		after = nil // install has begun with c.empty
	}
	if foreign || len(after) > 0 && string(after) != c.empty {
		if err = writeSettings(path, after); err == nil && !c.shared { // the rest belongs to the user
			err = include(dir, c.path)
		}
		return change, err
	}
	if err := os.Remove(path); err != nil {
		return change, err
	}
	for parent := filepath.Dir(c.path); parent != "."; parent = filepath.Dir(parent) {
		if os.Remove(filepath.Join(dir, parent)) != nil { // the directory is not empty
			break
		}
	}
	return change, include(dir, c.path)
}

// sharesTools reports whether another agent uses the entry of the tools in the file sharedTools, too.
func sharesTools(dir string, a Agent) bool {
	for other, c := range tools {
		if other == a || c.path != sharedTools {
			continue
		}
		for _, p := range []Part{Hooks, Skill} {
			if ok, err := Has(dir, other, p); ok || err != nil {
				return true
			}
		}
	}
	return false
}

// Foreign reports whether the file of a part exists in the directory dir, without what InstallPart adds to it.
func Foreign(dir string, a Agent, p Part) bool {
	c := a.piece(p)
	text, err := readSettings(filepath.Join(dir, c.path))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	_, n, err := c.cut(text)
	return n == 0 || err != nil
}

// Has reports whether a part of an agent's configuration is installed in the directory dir.
func Has(dir string, a Agent, p Part) (bool, error) {
	if p == Hooks && a != OpenCode {
		in, err := Installed(dir, a)
		return in.Yes, err
	}
	c := a.piece(p)
	text, err := readSettings(filepath.Join(dir, c.path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	n := 0
	if err == nil {
		_, n, err = c.cut(text)
	}
	return n > 0 && err == nil, err
}

// Installation describes the hooks of an agent in a directory.
type Installation struct {
	Path string // path of the agent's configuration file
	Yes  bool   // whether the file contains hooks of artifactfs, perhaps ones that the user has made or edited
	Old  bool   // whether an earlier version has written them, so that hooks for some events are missing
}

// Installed returns whether the agent's configuration in the directory dir contains hooks of artifactfs.
func Installed(dir string, a Agent) (Installation, error) {
	c := configurations[a]
	in := Installation{Path: filepath.Join(dir, c.path)}
	text, err := readSettings(in.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return in, nil
	case err != nil:
		return in, err
	case a == OpenCode:
		in.Yes = bytes.HasPrefix(text, []byte(pluginMark))
		before, after, _ := strings.Cut(plugin, "COMMAND")
		written, state := unseal(text, pluginSeal)
		in.Old = in.Yes && state != edited && (state == unsealed ||
			!bytes.HasPrefix(written, []byte(before)) || !bytes.HasSuffix(written, []byte(after)))
		return in, nil
	}
	found, err := c.entries(text, a)
	if err != nil {
		err = fmt.Errorf("edit settings %s: %w", in.Path, err)
	}
	in.Yes = len(found.own)+len(found.edited) > 0
	in.Old = in.Yes && slices.ContainsFunc(c.events, func(e configured) bool { return !found.has(e.name) })
	return in, err
}

// readSettings reads a settings file. It returns an error if the file is larger than maxSettings, or no regular file: a
// container may be able to replace it by a pipe.
func readSettings(path string) ([]byte, error) {
	f, err := disk.OpenRegular(path, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err == nil && len(text) > maxSettings {
		err = fmt.Errorf("read settings %s: file has more than %d bytes", path, maxSettings)
	}
	return text, err
}

// writeSettings writes a file. If the file exists, its permissions are kept, and a symbolic link is followed.
func writeSettings(path string, text []byte) error {
	mode := fs.FileMode(0o644)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
		if info, err := os.Stat(path); err == nil {
			mode = info.Mode().Perm()
		}
	}
	return disk.WriteFile(path, text, mode)
}

// git returns the output of a git command in directory dir, without the final newline.
func git(dir string, args ...string) (string, error) {
	out, err := gitcmd.AsUser(context.Background(), append([]string{"-C", dir}, args...)...).Output()
	return strings.TrimSuffix(string(out), "\n"), err
}

// tracked reports whether git tracks path, which is relative to dir.
func tracked(dir, path string) bool {
	out, err := git(dir, "ls-files", "--", path)
	return err == nil && out != ""
}

// isEmptyInGit reports whether path, which is relative to dir, is an empty file in the index.
func isEmptyInGit(dir, path string) bool {
	size, err := git(dir, "cat-file", "-s", ":./"+path)
	return err == nil && size == "0"
}

// excludeMark is the comment line before the line that Install adds to info/exclude. openMark is that line if the last
// line of the file had no newline, which include then removes.
const (
	excludeMark = "# artifactfs session hooks\n"
	openMark    = "# artifactfs session hooks; the line above had no newline\n"
)

// excluded returns the name of info/exclude, and the line in this file that excludes path, which is relative to dir. ok
// is false if dir is not in a git repository.
func excluded(dir, path string) (file, line string, ok bool) {
	out, err := git(dir, "rev-parse", "--path-format=absolute", "--git-path", "info/exclude", "--show-prefix")
	file, prefix, found := strings.Cut(out, "\n")
	if err != nil || !found {
		return "", "", false
	}
	return file, "/" + prefix + path + "\n", true
}

// exclude adds path, which is relative to dir, to the repository's info/exclude, unless git ignores the path already.
func exclude(dir, path string) error {
	file, line, ok := excluded(dir, path)
	if !ok {
		return nil
	}
	if _, err := git(dir, "check-ignore", "-q", "--", path); err == nil {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	lines := excludeMark + line
	if n := len(text); n > 0 && text[n-1] != '\n' {
		lines = "\n" + openMark + line
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return writeSettings(file, append(text, lines...))
}

// include removes the lines that exclude has added to info/exclude for path.
func include(dir, path string) error {
	file, line, ok := excluded(dir, path)
	if !ok {
		return nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	rest := withoutExclusion(string(text), line)
	if rest == string(text) {
		return nil
	}
	return writeSettings(file, []byte(rest))
}

// withoutExclusion returns the text of info/exclude without a line that exclude has added, and the mark before it.
func withoutExclusion(text, line string) string {
	before, after, open := strings.Cut(text, "\n"+openMark+line)
	if !open {
		before, after, _ = strings.Cut(text, excludeMark+line)
		return before + after
	}
	if next, more := strings.CutPrefix(after, excludeMark); more { // it is behind the open line now
		return before + "\n" + openMark + next
	}
	if after != "" {
		before += "\n"
	}
	return before + after
}

// GitDir returns the absolute path of the git directory of the working tree at dir. It runs git as the user.
func GitDir(ctx context.Context, dir string) (string, error) {
	out, err := gitcmd.AsUser(ctx, "-C", dir, "rev-parse", "--absolute-git-dir").Output()
	return strings.TrimSuffix(string(out), "\n"), err
}
