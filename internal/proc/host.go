package proc

import (
	"os"
	"strings"
)

// BootID returns a UUID that the host has until it is booted again, and no other host has: random(4).
func BootID() (string, error) {
	text, err := os.ReadFile(Root + "sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// MachineID returns the 32 hexadecimal digits that identify the installation of the host: machine-id(5). ok is false if it has
// none. Copies of an installation may have the same. The page asks programs to show others a keyed hash of it only.
func MachineID() (id string, ok bool) {
	text, err := os.ReadFile("/etc/machine-id")
	id = strings.TrimSpace(string(text))
	return id, err == nil && len(id) == 32 // or "uninitialized"
}
