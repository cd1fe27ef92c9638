package statedir

import (
	"strings"

	"github.com/artifactfs/artifactfs/control"
)

// RegistryVersion is the version of the files of the registry.
const RegistryVersion = 1

// Registered is a file of the registry: a mount that is to be restored. Fields are only ever added to a version.
type Registered struct {
	Version int                  `json:"version"`
	Request control.MountRequest `json:"request"` // its remote is without secrets
	Record  Record               `json:"record"`  // what was mounted
}

// QuoteGlob returns a pattern of filepath.Glob that matches path alone.
func QuoteGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
