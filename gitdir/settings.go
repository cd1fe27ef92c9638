package gitdir

import (
	"context"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/gitcmd"
)

// Checkout contains the settings that determine, together with the tree, the contents of files that are checked out. The fields
// hold unparsed text, so that they can be stored.
type Checkout struct {
	Config  []byte `json:"config"`  // output of git config -z
	Machine []byte `json:"machine"` // system-wide gitattributes file
	User    []byte `json:"user"`    // the user's gitattributes file
	Own     []byte `json:"own"`     // info/attributes in the git directory
}

// ReadCheckout reads the configuration and the attributes of the user and of the system, and the attributes in the git directory
// gitDir if it exists. The field of a missing file is empty, and Config is empty if git is not installed. Relative paths in the
// configuration are not supported.
func ReadCheckout(ctx context.Context, gitDir string) (c Checkout) {
	// Outside of a repository, git reads only the configuration of the user and of the system.
	cmd := gitcmd.New(ctx, "config", "-z", "--get-regexp", `^(core\.(autocrlf|eol|ignorecase|attributesfile)|filter\..*)$`)
	if out, err := cmd.Output(); err == nil {
		c.Config = out
	}
	_, attributes := parseSettings(string(c.Config))
	if attributes == "" {
		attributes = filepath.Join(configHome(), "git", "attributes")
	}
	read := func(path string) []byte {
		content, err := disk.ReadRegular(expandUser(path), disk.LargeFile)
		if err != nil {
			return nil // like git, ignore a file that cannot be read
		}
		return content
	}
	if !isTrue(os.Getenv("GIT_ATTR_NOSYSTEM")) {
		c.Machine = read(machineAttributes())
	}
	c.User, c.Own = read(attributes), read(filepath.Join(gitDir, "info", "attributes"))
	return c
}

// Size returns the total size of the settings in bytes.
func (c Checkout) Size() int { return len(c.Config) + len(c.Machine) + len(c.User) + len(c.Own) }

// Settings returns the parsed settings.
func (c Checkout) Settings() convert.Settings {
	s, _ := parseSettings(string(c.Config))
	s.Outside = convert.NewOutside(c.Machine, c.User, c.Own, s.IgnoreCase)
	return s
}

// parseSettings parses the output of git config -z --get-regexp: each entry is a key, followed by a line feed and the value if
// there is one. The result attributes is the value of core.attributesFile.
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
			// If the value is empty, git runs no command, but it still reads the file into memory instead of streaming it.
			d.Smudge, d.Clean = value, d.Clean || value == ""
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
		// If filter.NAME.process is set but empty, git ignores smudge and clean, and converts nothing.
		if d := drivers[name]; silenced[name] {
			d.Smudge, d.Clean = "", true
			drivers[name] = d
		}
	}
	s.Drivers = drivers
	return s, attributes
}

// isTrue parses a boolean by git's rules.
func isTrue(value string) bool {
	switch strings.ToLower(value) {
	case "true", "yes", "on":
		return true
	}
	n, err := strconv.Atoi(value)
	return err == nil && n != 0
}

// configHome returns the directory of the user's configuration (XDG Base Directory Specification).
func configHome() string {
	if dir := os.Getenv("XDG_CONFIG_HOME"); dir != "" {
		return dir
	}
	return "~/.config"
}

// machineAttributes returns the path of the system-wide gitattributes file. It is below the installation prefix of git,
// or in /etc if that prefix is /usr.
func machineAttributes() string {
	prefix := gitPrefix()
	if prefix == "/usr" {
		prefix = "/"
	}
	return filepath.Join(prefix, "etc", "gitattributes")
}

// gitPrefix returns the installation prefix of git.
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

// expandUser expands ~, ~USER and %(prefix) in a path, by the rules of git's configuration.
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
