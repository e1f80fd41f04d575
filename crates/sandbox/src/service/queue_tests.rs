use super::*;

fn owner(name: &str) -> Owner {
    name.parse().unwrap()
}

/// Take as many slots as there are for this owner.
fn fill(queue: &mut Queue<u64>, name: &str) -> usize {
    std::iter::repeat_with(|| queue.take(&owner(name))).take_while(|taken| *taken).count()
}

/// Give back a slot of `name`; who has it now, with what it said when it began to wait.
fn release(queue: &mut Queue<u64>, name: &str) -> Option<(String, u64)> {
    let next = queue.release(&owner(name));
    check(queue);
    next.map(|(owner, waiter)| (owner.to_string(), waiter))
}

fn next(name: &str, waiter: u64) -> Option<(String, u64)> {
    Some((name.to_owned(), waiter))
}

/// What holds between any two calls.
fn check(queue: &Queue<u64>) {
    for (owner, share) in &queue.shares {
        assert!(share.slots > 0 || !share.waiting.is_empty(), "{owner} is remembered for nothing");
        let turns = queue.turns.iter().filter(|waiting| *waiting == owner).count();
        assert_eq!(turns, usize::from(!share.waiting.is_empty()), "{owner} has {turns} turns");
        assert!(share.waiting.is_empty() || share.slots >= queue.free_slots, "{owner} waits for nothing");
    }
    assert!(queue.turns.iter().all(|owner| queue.shares.contains_key(owner)), "a turn of nobody");
}

#[test]
fn each_owner_gets_half_of_what_is_left() {
    for (slots, shares) in [
        (1, [1, 0, 0, 0, 0]),
        (2, [1, 1, 0, 0, 0]),
        (3, [2, 1, 0, 0, 0]),
        (4, [2, 1, 1, 0, 0]),
        (8, [4, 2, 1, 1, 0]),
        (16, [8, 4, 2, 1, 1]),
    ] {
        let mut queue = Queue::new(slots, 0);
        assert_eq!(["a", "b", "c", "d", "e"].map(|name| fill(&mut queue, name)), shares, "{slots} slots");
    }
}

#[test]
fn places_are_shared_like_slots() {
    for places in 2..100 {
        let mut queue = Queue::new(1, places);
        assert!(queue.take(&owner("a")));
        let waiting = (0..).take_while(|waiter| queue.wait(&owner("a"), *waiter).is_some()).count();
        assert_eq!(waiting, places.div_ceil(2));
        assert!(queue.wait(&owner("b"), 0).is_some(), "one owner fills {places} places");
        check(&queue);
    }
    assert_eq!(Queue::new(1, 0).wait(&owner("a"), ()), None);
}

#[test]
fn an_owner_is_served_in_its_own_order() {
    let mut queue = Queue::new(1, 100);
    fill(&mut queue, "a");
    for waiter in 0..50 {
        queue.wait(&owner("a"), waiter).unwrap();
    }
    for waiter in 0..50 {
        assert_eq!(release(&mut queue, "a"), next("a", waiter));
    }
    assert_eq!(release(&mut queue, "a"), None);
    assert!(queue.shares.is_empty() && queue.turns.is_empty());
}

#[test]
fn owners_take_turns() {
    let mut queue = Queue::new(1, 100);
    fill(&mut queue, "a");
    for name in ["a", "b", "c"] {
        for waiter in 0..3 {
            queue.wait(&owner(name), waiter).unwrap();
        }
    }
    let mut holder = "a".to_owned();
    let served = std::iter::from_fn(|| {
        let (name, waiter) = release(&mut queue, &holder)?;
        holder.clone_from(&name);
        Some(format!("{name}{waiter}"))
    });
    assert_eq!(served.collect::<Vec<_>>(), ["b0", "c0", "a0", "b1", "c1", "a1", "b2", "c2", "a2"]);
}

#[test]
fn a_newcomer_is_next_for_a_lone_slot() {
    let mut queue = Queue::new(1, 100);
    fill(&mut queue, "greedy");
    for waiter in 0..20 {
        queue.wait(&owner("greedy"), waiter).unwrap();
    }
    queue.wait(&owner("modest"), 7).unwrap();
    assert_eq!(release(&mut queue, "greedy"), next("modest", 7));
    assert_eq!(release(&mut queue, "modest"), next("greedy", 0));
}

#[test]
fn who_holds_fewest_is_next() {
    let mut queue = Queue::new(3, 100);
    assert_eq!((fill(&mut queue, "a"), fill(&mut queue, "b")), (2, 1));
    for name in ["a", "b", "c"] {
        queue.wait(&owner(name), 0).unwrap();
    }
    assert_eq!(release(&mut queue, "a"), next("c", 0), "both others hold one and were there before");
    assert_eq!(release(&mut queue, "c"), None, "one is left for whoever comes next");
    assert!(queue.take(&owner("d")));
}

#[test]
fn leaving_frees_the_place_and_keeps_the_turn() {
    for leaver in 0..4 {
        let mut queue = Queue::new(1, 9);
        fill(&mut queue, "x");
        let tickets = [0, 1, 2, 3].map(|waiter| queue.wait(&owner("a"), waiter).unwrap());
        queue.wait(&owner("b"), 9).unwrap();
        let free = queue.free_places;
        queue.leave(&owner("a"), tickets[leaver]);
        queue.leave(&owner("a"), tickets[leaver]);
        assert_eq!(queue.free_places, free + 1, "a place is given back once");
        check(&queue);
        let first = u64::from(leaver == 0);
        assert_eq!(release(&mut queue, "x"), next("a", first), "{leaver} left");
        assert_eq!(release(&mut queue, "a"), next("b", 9));
        queue.leave(&owner("a"), tickets[first as usize]);
        assert_eq!(queue.free_places, free + 3, "one whose turn has come has no place to give back");
    }
}

#[test]
fn the_last_one_who_leaves_takes_its_turn_along() {
    let mut queue = Queue::new(1, 10);
    fill(&mut queue, "x");
    let ticket = queue.wait(&owner("a"), 0).unwrap();
    queue.leave(&owner("a"), ticket);
    check(&queue);
    assert_eq!(release(&mut queue, "x"), None);
    assert!(queue.take(&owner("b")), "the slot is free");
}

#[test]
fn nobody_is_passed_over_for_ever() {
    for slots in 1..6 {
        let mut queue = Queue::new(slots, 1000);
        fill(&mut queue, "a");
        let mut running: VecDeque<String> = (0..slots.div_ceil(2)).map(|_| "a".to_owned()).collect();
        queue.wait(&owner("a"), 1).unwrap();
        // Owners that were never seen before keep coming, and each holds nothing yet.
        let served = (0..100).find(|newcomer| {
            let name = format!("n{newcomer}");
            if queue.take(&owner(&name)) {
                running.push_back(name);
            } else {
                queue.wait(&owner(&name), 0).unwrap();
            }
            let ended = running.pop_front().unwrap();
            let next = release(&mut queue, &ended);
            let is_served = next.as_ref().is_some_and(|(name, _)| name == "a");
            running.extend(next.map(|(name, _)| name));
            is_served
        });
        assert!(served.is_some_and(|after| after <= 2 * slots), "{slots} slots: {served:?}");
    }
}

#[test]
fn whatever_happens_nothing_is_lost() {
    for seed in 1..200_u64 {
        let (slots, places) = (1 + seed as usize % 7, seed as usize % 23);
        let mut queue = Queue::new(slots, places);
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for step in 0..400 {
            let name = ["a", "b", "c", "d"][random(4)];
            match random(5) {
                0..3 => {
                    if queue.take(&owner(name)) {
                        held.push(name.to_owned());
                    } else if let Some(ticket) = queue.wait(&owner(name), step) {
                        waiting.push((name, ticket, step));
                    }
                }
                3 if !waiting.is_empty() => {
                    let (name, ticket, _) = waiting.swap_remove(random(waiting.len()));
                    queue.leave(&owner(name), ticket);
                }
                _ if !held.is_empty() => {
                    let ended = held.swap_remove(random(held.len()));
                    if let Some((name, waiter)) = release(&mut queue, &ended) {
                        waiting.retain(|(_, _, step)| *step != waiter);
                        held.push(name);
                    }
                }
                _ => {}
            }
            check(&queue);
            assert_eq!((queue.free_slots + held.len(), queue.free_places + waiting.len()), (slots, places));
        }
        while let Some(ended) = held.pop() {
            held.extend(release(&mut queue, &ended).map(|(name, _)| name));
        }
        assert_eq!((queue.free_slots, queue.free_places), (slots, places));
        assert!(queue.shares.is_empty() && queue.turns.is_empty());
    }
}
