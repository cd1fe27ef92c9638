package api

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/artifactfs/artifactfs/git/refname"
)

const (
	minNamespace = 2
	maxNamespace = 63
	maxName      = 512 // maximum length of the name of a repository in bytes; the live service accepts more than 300
	maxText      = 4096
	// git creates a file with this name and the suffix ".lock", which file systems limit to 255 bytes
	maxBranchName = 244
)

// plainName reports whether text consists of letters, digits, '.', '_' and '-', and begins with a letter or digit.
func plainName(text string) bool {
	for i, c := range []byte(text) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || strings.IndexByte("._-", c) < 0) {
			return false
		}
	}
	return text != ""
}

// validNamespace returns a fault unless a namespace can have this name.
func validNamespace(name string) *Fault {
	if len(name) < minNamespace || len(name) > maxNamespace || !plainName(name) {
		return invalid("namespace", "Invalid namespace name")
	}
	return nil
}

// validRepo returns a fault unless a repository can have this name.
func validRepo(name string) *Fault {
	message := ""
	switch {
	case !plainName(name):
		message = "Invalid repo name: must match /^[a-zA-Z0-9][a-zA-Z0-9._-]*$/"
	case len(name) > maxName:
		message = fmt.Sprintf("Invalid repo name: must have at most %d characters", maxName)
	default:
		return nil
	}
	return &Fault{http.StatusBadRequest, codeRepoName, message, "/name"}
}

// validBranch returns a fault unless git accepts name as a short name of a branch. field is the field of the request.
func validBranch(field, name string) *Fault {
	if len(name) > maxBranchName || !refname.Valid("refs/heads/"+name) || strings.HasPrefix(name, "-") || name == "HEAD" {
		return invalid(field, "Invalid branch name")
	}
	return nil
}
