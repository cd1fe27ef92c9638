package overlay

import "sync"

// stateLock protects the state of a layer. Lock and RLock work as in sync.RWMutex. The holder of Reserve excludes other
// holders of Reserve and Lock, but not those of RLock, so that all can read while it reads and then decides to write.
// Readers do not wait for a goroutine that waits for Lock meanwhile, as they would if the holder had called RLock.
type stateLock struct {
	writing sync.Mutex // held by the holders of Lock and Reserve; taken before rw
	rw      sync.RWMutex
}

// Lock takes the lock exclusively.
func (k *stateLock) Lock() {
	k.writing.Lock()
	k.rw.Lock()
}

// Unlock releases the lock that Lock has taken.
func (k *stateLock) Unlock() {
	k.rw.Unlock()
	k.writing.Unlock()
}

// RLock takes the lock shared.
func (k *stateLock) RLock() { k.rw.RLock() }

// RUnlock releases the lock that RLock has taken.
func (k *stateLock) RUnlock() { k.rw.RUnlock() }

// Reserve makes all changes of the state wait until Release. Its holder can read the state.
func (k *stateLock) Reserve() { k.writing.Lock() }

// Release releases the lock that Reserve has taken.
func (k *stateLock) Release() { k.writing.Unlock() }

// Upgrade gives the holder of Reserve the lock exclusively.
func (k *stateLock) Upgrade() { k.rw.Lock() }

// Downgrade ends what Upgrade has begun.
func (k *stateLock) Downgrade() { k.rw.Unlock() }
