package gitdir

import (
	"context"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

// Checkout is what decides about contents of a checkout beside the tree, as it was read.
type Checkout struct {
	Config  []byte `json:"config"` // as git config -z prints it
	Machine []byte `json:"machine"`
	User    []byte `json:"user"`
	Own     []byte `json:"own"` // the attributes of the git directory
}

// ReadCheckout reads the user's and the machine's git configuration and attributes, and the attributes of the git
// directory at gitDir, if there is one. Without git, or without a word there, it is git's default. Paths relative to a
// directory are not known.
func ReadCheckout(ctx context.Context, gitDir string) (c Checkout) {
	// In no repository: only the user's and the machine's configuration.
	cmd := gitcmd.New(ctx, "config", "-z", "--get-regexp", `^(core\.(autocrlf|eol|ignorecase|attributesfile)|filter\..*)$`)
	if out, err := cmd.Output(); err == nil {
		c.Config = out
	}
	_, attributes := parseSettings(string(c.Config))
	if attributes == "" {
		attributes = filepath.Join(configHome(), "git", "attributes")
	}
	read := func(path string) []byte {
		content, err := os.ReadFile(expandUser(path))
		if err != nil {
			return nil // as for git, a file that cannot be read says nothing
		}
		return content
	}
	if !isTrue(os.Getenv("GIT_ATTR_NOSYSTEM")) {
		c.Machine = read(machineAttributes())
	}
	c.User, c.Own = read(attributes), read(filepath.Join(gitDir, "info", "attributes"))
	return c
}

// Size is how much was read, in bytes.
func (c Checkout) Size() int { return len(c.Config) + len(c.Machine) + len(c.User) + len(c.Own) }

// Settings is what it means.
func (c Checkout) Settings() convert.Settings {
	s, _ := parseSettings(string(c.Config))
	s.Outside = convert.NewOutside(c.Machine, c.User, c.Own, s.IgnoreCase)
	return s
}

// parseSettings takes what `git config -z --get-regexp` prints: keys, each with a line's end and a value, or without
// where there is none. attributes is core.attributesFile.
func parseSettings(out string) (s convert.Settings, attributes string) {
	drivers, silenced := map[string]convert.Driver{}, map[string]bool{}
	for entry := range strings.SplitSeq(out, "\x00") {
		key, value, hasValue := strings.Cut(entry, "\n")
		switch key {
		case "core.autocrlf":
			s.AutoCRLF = strings.ToLower(value)
			if !hasValue {
				s.AutoCRLF = "true"
			}
		case "core.eol":
			s.EOL = strings.ToLower(value)
		case "core.ignorecase":
			s.IgnoreCase = !hasValue || isTrue(value)
		case "core.attributesfile":
			attributes = value
		}
		name, ok := strings.CutPrefix(key, "filter.")
		end := strings.LastIndexByte(name, '.')
		if !ok || end < 0 {
			continue
		}
		d := drivers[name[:end]]
		d.Name = name[:end]
		switch name[end+1:] {
		case "smudge":
			d.Smudge, d.Clean = value, d.Clean || value == "" // no command, but git does not stream such a file
		case "process":
			d.Process, silenced[d.Name] = value, value == ""
		case "clean":
			d.Clean = true
		case "required":
			d.Required = !hasValue || isTrue(value)
		}
		drivers[d.Name] = d
	}
	for name := range silenced {
		if d := drivers[name]; silenced[name] { // an empty process outranks the command, and does nothing
			d.Smudge, d.Clean = "", true
			drivers[name] = d
		}
	}
	s.Drivers = drivers
	return s, attributes
}

// isTrue reads a boolean as git does.
func isTrue(value string) bool {
	switch strings.ToLower(value) {
	case "true", "yes", "on":
		return true
	}
	n, err := strconv.Atoi(value)
	return err == nil && n != 0
}

func configHome() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return dir
	}
	return "~/.config"
}

// machineAttributes is where the installed git looks: beside itself, unless it belongs to the system.
func machineAttributes() string {
	prefix := gitPrefix()
	if prefix == "/usr" {
		prefix = "/"
	}
	return filepath.Join(prefix, "etc", "gitattributes")
}

func gitPrefix() string {
	path, err := gitcmd.LookPath()
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "/usr"
	}
	return filepath.Dir(filepath.Dir(path))
}

// expandUser is git's expansion of paths in its configuration.
func expandUser(path string) string {
	if rest, ok := strings.CutPrefix(path, "%(prefix)/"); ok {
		return filepath.Join(gitPrefix(), rest)
	}
	if !strings.HasPrefix(path, "~") {
		return path
	}
	name, rest, _ := strings.Cut(path[1:], "/")
	home := os.Getenv("HOME")
	if name != "" {
		u, err := user.Lookup(name)
		if err != nil {
			return path
		}
		home = u.HomeDir
	}
	return filepath.Join(home, rest)
}
