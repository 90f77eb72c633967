"""Hand-written conversations, answered by a model and printed, to be read and judged: `python -m kvcache.bundled.talks`.

A hundred turns as a visitor might type them; "System: " begins a system message. Nothing was tuned by them.
"""

import argparse
from pathlib import Path

from . import environment, evaluate, path

TALKS = tuple(tuple(talk.strip().split("\n")) for talk in """
Hi there!
My name is Oscar and I live in Utrecht.
Do you know where I live?
And what am I called?

hello
what can you do?
tell me a joke
ok bye

System: You are Nova, a friendly assistant.
who are you?
I'm Priya
what's my name and what is yours?
thanks!

Good morning
I have a dog called Biscuit and a cat called Pepper
what is the cat called?
and the dog?

the door code is 4821
my bike lock is 77-12
what's the door code?
What's the number of my bike lock?

What is my favourite colour?
It is turquoise.
Now, what is my favourite colour?
Actually it's orange now. What is it?

tell me a story about a fox
who was the fox?
where did he live?
nice, another one please

list four fruits
what is 3 + 4?
And 5 plus 2?
how many days are there in a week?

My sister Ella works as a vet in Lyon.
What does Ella do?
Where does she work?
What does my brother do?

I put the passport in the blue drawer
I have to leave at half past six
Where did I put my passport?
When do I have to leave?

How are you today?
I'm a bit tired, I slept badly.
It rained all night.
What should I do?

System: Answer briefly.
Remember this: the meeting is on Thursday at 3.
When is the meeting?
Who comes to the meeting?
Thank you very much

Can you remember things?
My locker is number 214.
My teacher is Mr Brown.
Which locker is mine?

I love lasagna but I hate olives
what food do I love?
what do I hate?
do I like soup?

hey im zoe, nice to meet you
i play the cello on mondays
which instrument do i play?
when do i play it?

We are going to Lisbon in May.
I bought a hat for 30 euros.
Where are we going?
How much did I pay for the hat?

What's the capital of France?
Who won the world cup?
what do you know about me?
I am 34 years old.

My wifi password is green-tiger-9
Please repeat my wifi password.
Is it raining?
forget it

The red box is for Tom and the blue box is for Anna.
Who is the red box for?
And the blue one?
What about the green box?

Do you like music?
My favourite band is Silver Comet.
What band do I like?
Which song do I like best?

I'm allergic to peanuts.
What am I allergic to?
Can I eat peanuts?
Good to know

My car is a white Volvo
my neighbour Karim has a black Honda
what car does Karim have?
what colour is my car?

Count to five
Write a poem
What's your favourite animal?
Mine is the otter, what is it?

Call yourself Max.
What is your name?
My name is Max too!
What is my name?

I lost my keys
They were under the sofa, I found them
Where were my keys?
Great, see you later
""".strip().split("\n\n"))


def answered(model, tokenizer) -> list[list[dict[str, str]]]:
    """Every talk with the model's greedy replies, each given what it said before."""
    talks = []
    for lines in TALKS:
        messages: list[dict[str, str]] = []
        for line in lines:
            if line.startswith("System: "):
                messages.append({"role": "system", "content": line.removeprefix("System: ")})
                continue
            messages.append({"role": "user", "content": line})
            messages.append({"role": "assistant", "content": evaluate.replies(model, tokenizer, [messages], max_new_tokens=64)[0]})
        talks.append(messages)
    return talks


def main(arguments: list[str] | None = None) -> None:
    """Print the talks, replies numbered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=path())
    number = 0
    for messages in answered(*evaluate.load(parser.parse_args(arguments).model)):
        for message in messages:
            number += message["role"] == "assistant"
            print(f"{number:3}. {message['content']}" if message["role"] == "assistant" else f"{message['role']:>9}: {message['content']}")
        print()


if __name__ == "__main__":
    environment.restart("kvcache.bundled.talks")
    main()
