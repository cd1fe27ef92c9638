package proc

import (
	"os"
	"strings"
)

// BootID returns the UUID of the current boot of the host (random(4)). Every boot of every host has a different UUID.
func BootID() (string, error) {
	text, err := os.ReadFile(Root + "sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// MachineID returns the 32 hexadecimal digits that identify the installation of the operating system (machine-id(5)).
// ok is false if the host has no such ID. Copies of an installation may have the same ID. The manual page asks programs
// not to show the ID to other parties, but a keyed hash of the ID.
func MachineID() (id string, ok bool) {
	text, err := os.ReadFile("/etc/machine-id")
	id = strings.TrimSpace(string(text))
	return id, err == nil && len(id) == 32 // the file contains the word "uninitialized" until the first boot has set the ID
}
